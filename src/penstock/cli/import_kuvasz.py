"""`penstock import kuvasz`: print a pipeline file that does what a kuvasz-streamer map does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.config.kuvasz_files import read_map, read_service
from penstock.config.kuvasz_pipeline import imported
from penstock.errors import ConfigError


def import_kuvasz(
    map_file: Annotated[
        Path, typer.Argument(metavar="MAP", help="kuvasz-streamer's map of tables.", show_default=False)
    ],
    conf: Annotated[
        Path | None,
        typer.Option("--conf", metavar="FILE", help="Its kuvasz-streamer.toml, which names the destination."),
    ] = None,
    database: Annotated[
        str | None, typer.Option("--database", metavar="NAME", help="Which database of the map, if it has several.")
    ] = None,
) -> None:
    """Print a pipeline file made from kuvasz-streamer's map; what cannot be carried over is on standard error, too.

    Passwords become variables of the environment, which comments in the file name. Nothing is connected to.
    """
    made = imported(map_file, read_map(map_file), None if conf is None else read_service(conf), database)
    typer.echo(made.text, nl=False)
    for note in made.notes:
        typer.echo(note, err=True)
    if not made.rules:
        raise ConfigError(
            f"none of the tables in {map_file} can be followed as it is there",
            "The lines above and the comments in the output say why: complete the rules, and remove the # before them",
        )

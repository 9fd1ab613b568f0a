"""`penstock init URL`: write a first, commented pipeline file from what a database has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.terminal import stdout
from penstock.control.first_file import first_file
from penstock.errors import UsageError


def init(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="Such as postgresql://user@host:5432/database.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="Where to; - prints it.")] = Path(
        "pipeline.yaml"
    ),
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The pipeline's name; the database's without.")
    ] = None,
) -> None:
    """Write a pipeline file for a database: the tables that are there, which modes fit each, and what has to be fixed.

    Nothing is changed at the source. A password in the URL does not go into the file: a variable of the environment
    stands for it. A file that is there already is not touched.
    """
    if url.endswith((".yaml", ".yml")):
        raise UsageError(
            f"{url} is a file, and init writes one from a database's URL",
            "For the DDL trigger, which init was for: penstock source ddl-trigger install FILE",
        )
    prints = str(output) == "-"
    if not prints and output.exists():
        raise UsageError(f"{output} is there already", "Give another path with --output, or - to print it")
    made = first_file(url, name, Path.cwd() / "pipeline.yaml" if prints else output.absolute())
    if prints:
        typer.echo(made.text, nl=False)
        return
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(descriptor, "w") as file:
            file.write(made.text)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}", "Give another path with --output") from error
    console = stdout()
    console.print(f"wrote {output}: pipeline {made.name} with {made.tables:,} tables", markup=False)
    for variable in made.variables:
        console.print(f"set {variable} in the environment", markup=False)
    verb = "fix what its comments name" if made.errors else "nothing has to be fixed"
    console.print(f"{verb}, then: penstock run {output}", markup=False)

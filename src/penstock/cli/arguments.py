"""Define the parameters that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[
    str | None, typer.Option("--source", metavar="NAME", help="Which of the pipeline's sources, if it has a list.")
]
Destination = Annotated[
    str | None,
    typer.Option("--destination", metavar="NAME", help="Which of the pipeline's destinations, if it has several."),
]
PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's YAML file.", show_default=False)]

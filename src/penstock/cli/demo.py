"""`penstock demo`: see the whole path work on this machine, in about a minute."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.terminal import stdout
from penstock.demo.run import Kind
from penstock.demo.run import demo as run_demo


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long the shop is open.")] = 30,
    source: Annotated[Kind, typer.Option(help="`mysql` takes the MariaDB or MySQL installed here.")] = "postgres",
) -> None:
    """Start a throw-away database with a small shop, keep a lake equal to it under live traffic, and prove it.

    Exit 0 only when every table is equal. Nothing is left running, and nothing is left on disk.
    """
    run_demo(stdout(), seconds, source)

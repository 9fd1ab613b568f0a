"""`penstock jars fetch`: fetch the Java libraries beforehand, for images and machines without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.terminal import stdout
from penstock.destinations.registry import store_packages
from penstock.runtime.spark import class_archive, jars
from penstock.runtime.spark.session import require_java


def jars_fetch(
    s3: Annotated[
        bool, typer.Option("--s3", help="Fetch those for Iceberg tables in S3 too, which are 69 MB more.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build the archive again: after an upgrade of Java.")
    ] = False,
) -> None:
    """Fetch the Java libraries that Spark needs, and build an archive of their classes, with which Spark starts faster.

    Without this command the first start of Spark fetches them. What is there already is not fetched again.
    """
    console = stdout()
    require_java()

    def say(folder: Path, count: int) -> None:
        console.print(f"fetching {count} jars into {folder} …", markup=False)

    present = jars.fetch(say, store_packages() if s3 else ())
    for jar in present:
        console.print(f"{jar.name}  {jar.stat().st_size / 1e6:,.1f} MB", markup=False)
    if rebuild or not class_archive.is_current():
        console.print("building an archive of Java's classes …", markup=False)
        class_archive.build()
    console.print(f"ready: {jars.folder()}", markup=False)

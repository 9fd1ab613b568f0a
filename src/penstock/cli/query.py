"""`penstock query FILE "SQL"`: run read-only Spark SQL over the destination."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.arguments import Destination, PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.control.query import direct_query
from penstock.control.query.result_view import as_csv, as_json, as_table
from penstock.control.query.spark_sql import reading_session, refuse_writing, run_query
from penstock.destinations.factory import make_readable


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def query(
    file: PipelineFile,
    statement: Annotated[str, typer.Argument(metavar="SQL", help='Such as "select * from public.orders limit 5".')],
    destination: Destination = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many rows; all without.")] = None,
    consistent: Annotated[
        bool, typer.Option("--consistent", help="All tables as they are at one instant: whole transactions.")
    ] = False,
    output: Annotated[Format, typer.Option("--format", help="json is one array of objects.")] = Format.TABLE,
) -> None:
    """Run one Spark SQL statement over the destination's tables, which are named schema.table.

    Simple reads of one table are answered without Spark. A Postgres destination answers by itself, in its own SQL, and
    every statement there sees one instant.
    """
    refuse_writing(statement)
    pipeline = load(file).destination_view(destination)
    tables = make_readable(pipeline.lake)
    answer = direct_query.answer(pipeline, statement) if tables.by_spark else tables.query(statement, limit)
    if answer is None:
        with reading_session(pipeline, consistent=consistent) as spark:
            tables.register(spark, statement)
            answer = run_query(spark, statement, limit)
    answer = answer if limit is None else answer.slice(0, limit)
    if output is Format.TABLE:
        stdout().print(as_table(answer))
    else:
        typer.echo(as_json(answer) if output is Format.JSON else as_csv(answer).rstrip("\n"))

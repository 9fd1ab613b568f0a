"""A Postgres destination for the behaviour suites: drivers on one database, and rows as the other lakes give them."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.rows import dict_row

from databases import Database
from destination_rows import Lake
from penstock.config.postgres_destination import PostgresDestination as PostgresConfig
from penstock.decode.rescue import RESCUED, RESCUED_TYPE
from penstock.destinations.postgres.destination import PostgresDestination
from penstock.model.table import TableId


def postgres_lake(database: Database, **settings: Any) -> Lake:
    config = PostgresConfig.model_validate({"type": "postgres", "url": database.url, **settings})

    def driver() -> PostgresDestination:
        destination = PostgresDestination(config)
        destination.open()
        return destination

    def read(target: TableId) -> pa.Table:
        with psycopg.connect(database.url, row_factory=dict_row, options="-c timezone=UTC") as connection:
            found = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(target.schema, target.name)))
            names = [column.name for column in found.description or ()]
            rows = [{name: _plain(name, row[name]) for name in names} for row in found]
        columns = {}
        for name in names:
            values = [row[name] for row in rows]
            columns[name] = pa.array(values, RESCUED_TYPE) if name == RESCUED else pa.array(values)
        return pa.table(columns)

    def roll_back(target: TableId) -> None:
        database.execute(f'truncate "{target.schema}"."{target.name}"')

    return Lake(driver, read, roll_back)


def _plain(name: str, value: Any) -> Any:
    if name == RESCUED:
        return None if value is None else list(value.items())
    return str(value) if isinstance(value, uuid.UUID) else value

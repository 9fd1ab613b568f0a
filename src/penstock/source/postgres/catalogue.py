"""What the catalogue shows of tables beside their structure, by table: for sessions and for sessions in a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.partitions import Partitions
from penstock.model.table import TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.partitions import read_partitions
from penstock.source.postgres.publication import publications
from penstock.source.postgres.table_marks import read_marks


def marks_of(connection: Connection, publication: str, schemas: Sequence[TableSchema]) -> dict[TableId, TableMarks]:
    found = read_marks(connection, publications(publication), [schema.relation_id for schema in schemas])
    return {schema.table: found[schema.relation_id] for schema in schemas}


def partitions_of(connection: Connection, schemas: Sequence[TableSchema]) -> dict[TableId, Partitions]:
    found = read_partitions(connection, [schema.relation_id for schema in schemas])
    return {schema.table: found[schema.relation_id] for schema in schemas if schema.relation_id in found}

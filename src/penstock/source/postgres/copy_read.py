"""Read one range of a table's initial copy (copy_ranges.py) as typed Arrow batches. Runs in tasks; no Spark in it.

The batches have the columns of decode's `arrow_schema`, and every value is the one that the stream gives for the same
row (copy_columns.py); a batch with cells that fit no column has a further one, RESCUED, with their texts. They are
worth something only once the iterator has ended by itself: what was read of a table that has been rewritten is void,
and that is known for certain at the end.

The reader's strongest lock is ACCESS SHARE, on the relation it reads, for as long as it reads the range.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa

from penstock.decode.rescue import RESCUED, RESCUED_TYPE, Rescued, shown
from penstock.decode.schema import arrow_schema
from penstock.errors import RangeVoid, SourceMisconfigured, ValueDoesNotFit
from penstock.model.rescue import RescueCount
from penstock.model.table import Column, TableId, TableSchema
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.copy_columns import Misfits, converted, expression, is_expected
from penstock.source.postgres.copy_ranges import CopyRange, leaves, rewritten
from penstock.source.postgres.copy_session import (
    DRIVER_ERRORS,
    CopySession,
    copy_session,
    driver_errors,
    psycopg_error,
)
from penstock.source.postgres.publication import publications
from penstock.source.postgres.statements import literal, quoted_table

BATCH_BYTES = 8 * 1024 * 1024
_UNKNOWN_ROW_BYTES = 100  # of a row in a table without statistics


@dataclass(frozen=True)
class CopySource:
    """What all ranges of a table have in common. `snapshot` is ExportedSnapshot.name; it must be open still."""

    url: str = field(repr=False)
    snapshot: str
    schema: TableSchema
    row_filter: str | None = None


def ignored(counts: tuple[RescueCount, ...]) -> None:
    """`rescuing` for those who do not count."""


def read_range(
    source: CopySource,
    range: CopyRange,
    *,
    max_rows_per_second: float | None = None,
    statement_timeout: float,
    conditions: Sequence[str] | None = None,
    strict: bool = False,
    rescuing: Callable[[tuple[RescueCount, ...]], None] = ignored,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of the range that the snapshot sees and the publication publishes, about 8 MiB at a time.

    With `conditions` (copy_keys.py), those of the whole relation that satisfy one of them, found by an index.
    Values that do not fit are rescued, and `rescuing` is called with each batch's; with `strict`, and in a key
    column, they are ValueDoesNotFit. RangeVoid when the table was rewritten, or changed its columns, since the
    snapshot or since the range was planned; SourceUnreachable when connection or snapshot has gone, or after
    `statement_timeout` seconds, in which the time counts that the caller takes, and the waits that
    `max_rows_per_second` makes.
    """
    schema = arrow_schema(source.schema)
    blocks = _blocks(range)
    with copy_session(source.url, source.snapshot, statement_timeout=statement_timeout) as session:
        with driver_errors(_doing(range), source.url):
            received = _lock(session, source, range, _query(source, range, blocks))
            _check_unchanged(session, source, range)
            _check_types(source, received)
        began, rows = time.monotonic(), 0
        for condition in [blocks] if conditions is None else conditions:
            query = _query(source, range, condition)
            with closing(session.batches(query, BATCH_BYTES, by_block=conditions is None)) as batches:
                while (batch := _next(batches, source, range)) is not None:
                    if batch.num_rows == 0:
                        continue
                    rows += batch.num_rows
                    typed, counts = _typed(source.schema, schema, _place(range), batch, strict=strict)
                    if counts:
                        rescuing(counts)
                    yield typed
                    if max_rows_per_second:
                        time.sleep(max(0.0, began + rows / max_rows_per_second - time.monotonic()))
        with driver_errors(_doing(range), source.url):
            _check_unchanged(session, source, range)


def first_rows(url: str, schema: TableSchema, most: int, *, statement_timeout: float) -> pa.Table:
    """Return a few rows of a table, with all its partitions, as they are now."""
    columns = ", ".join(expression(column) for column in schema.columns)
    query = f"SELECT {columns} FROM {quoted_table(schema.table)} LIMIT {most}"
    whole, doing = arrow_schema(schema), f"reading rows of table {schema.table}"
    with copy_session(url, None, statement_timeout=statement_timeout) as session, driver_errors(doing, url):
        batches = list(session.batches(query, BATCH_BYTES, by_block=False))
    found = [_typed(schema, whole, doing, batch, strict=False)[0] for batch in batches if batch.num_rows]
    return (
        pa.concat_tables([pa.Table.from_batches([one]) for one in found], promote_options="default")
        if found
        else (whole.empty_table())
    )


def row_filter(connection: Connection, publication: str, table: TableId) -> str | None:
    """Return the condition under which the publication publishes a row of the table; None: all of them.

    Exists since 15.

    With publish_via_partition_root, a root's filter is the one for all its leaves, whatever they have of their own.
    """
    if connection.info.server_version < 150000:
        return None
    with source_errors(f"reading the row filter of table {table}"):
        row = connection.execute(
            "SELECT pg_get_expr(r.prqual, r.prrelid) FROM pg_publication_rel r"
            " JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE p.pubname = ANY (%s) AND n.nspname = %s AND c.relname = %s"
            " ORDER BY r.prqual IS NOT NULL",  # without one all rows are sent
            (publications(publication), table.schema, table.name),
        ).fetchone()
    return row[0] if row is not None else None


def estimate(connection: Connection, schema: TableSchema) -> tuple[int, int]:
    """About how many rows the table has, and how many bytes with TOAST: for progress bars, not for decisions."""
    sizes = leaves(connection, schema)
    rows = sum(
        leaf.blocks * leaf.density if leaf.density is not None else leaf.bytes / _UNKNOWN_ROW_BYTES for leaf in sizes
    )
    return round(rows), sum(leaf.bytes for leaf in sizes)


def _blocks(range: CopyRange) -> str:
    first = f"ctid >= '({range.first_block},0)'::pg_catalog.tid"
    return first if range.end_block is None else f"{first} AND ctid < '({range.end_block},0)'::pg_catalog.tid"


def _query(source: CopySource, range: CopyRange, condition: str) -> str:
    columns = ", ".join(expression(column) for column in source.schema.columns)
    if source.row_filter is not None:
        condition = f"{condition} AND ({source.row_filter})"
    return f"SELECT {columns} FROM ONLY {quoted_table(range.relation)} WHERE {condition}"


def _lock(session: CopySession, source: CopySource, range: CopyRange, query: str) -> pa.Schema:
    """From here on nobody can rewrite or alter the relation until we have done. Gives what the query would return."""
    try:
        return session.schema(query)
    except DRIVER_ERRORS as error:
        same = psycopg_error(error, source.url)
        if isinstance(same, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
            raise rewritten(source.schema.table, range.relation) from None
        if isinstance(same, psycopg.errors.UndefinedColumn):
            raise _altered(source, str(same)) from None
        if isinstance(same, psycopg.errors.InsufficientPrivilege):
            raise SourceMisconfigured(
                f"{_doing(range)}: {same}",
                f"Let the role read all of it: GRANT SELECT ON {quoted_table(range.relation)} TO … (rights on single "
                "columns do not suffice, nor those on a partition's root), and where the table has row-level security "
                "ALTER ROLE … BYPASSRLS",
            ) from None
        raise


def _next(batches: Iterator[pa.RecordBatch], source: CopySource, range: CopyRange) -> pa.RecordBatch | None:
    with driver_errors(_doing(range), source.url):
        return next(batches, None)


def _check_unchanged(session: CopySession, source: CopySource, range: CopyRange) -> None:
    """Compare the relation as the snapshot sees it (plain reads of the catalogue) with what it is (functions)."""
    names = ", ".join(literal(column.name) for column in source.schema.columns)
    seen = session.row(
        f"""
        SELECT c.relfilenode::bigint AS planned, pg_relation_filenode(c.oid)::bigint AS current,
               to_regclass({literal(quoted_table(range.relation))})::oid::bigint AS found,
               (SELECT count(*) FROM pg_attribute a
                WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attname IN ({names})
                  AND (pg_identify_object_as_address('pg_class'::regclass, c.oid, a.attnum)).object_names[3] = a.attname
               ) AS columns
        FROM pg_class c WHERE c.oid = {range.relation_id}
        """
    )
    if seen is None or not seen["planned"] == seen["current"] == range.filenode or seen["found"] != range.relation_id:
        raise rewritten(source.schema.table, range.relation)
    if seen["columns"] != len(source.schema.columns):
        raise _altered(source, "a column was renamed, dropped or created again")


def _check_types(source: CopySource, received: pa.Schema) -> None:
    """Require the types that were planned: one may change without a rewrite, and without a new column."""
    for column, type in zip(source.schema.columns, received.types, strict=True):
        if not is_expected(column, type):
            raise _altered(source, f'column "{column.name}" is no longer {column.type.name}')


def _typed(
    source: TableSchema, schema: pa.Schema, place: str, batch: pa.RecordBatch, *, strict: bool
) -> tuple[pa.RecordBatch, tuple[RescueCount, ...]]:
    rescued = Rescued()
    columns = []
    for column, array in zip(source.columns, batch.columns, strict=True):
        values, misfits = _column(source, column, array)
        if misfits is not None:
            if strict or column.name in source.key:
                raise _does_not_fit(source, column, place, misfits)
            rescued.keep(column.name, misfits.rows, misfits.texts, place)
        columns.append(values)
    cells = rescued.cells(batch.num_rows)
    if cells is not None:
        columns.append(cells)
        schema = schema.append(pa.field(RESCUED, RESCUED_TYPE))
    return pa.RecordBatch.from_arrays(columns, schema=schema), rescued.counts


def _column(source: TableSchema, column: Column, array: pa.Array) -> tuple[pa.Array, Misfits | None]:
    if array.null_count and column.name in source.key:
        raise RangeVoid(
            f'table {source.table}: its key column "{column.name}" was nullable when the snapshot was made',
            "Its copy starts again by itself, from a newer snapshot",
        )
    return converted(column, array)


def _does_not_fit(source: TableSchema, column: Column, place: str, misfits: Misfits) -> ValueDoesNotFit:
    return ValueDoesNotFit(
        f'table {source.table}, {place}: column "{column.name}" ({column.type.name}): '
        f"{shown(misfits.texts[0])!r} does not fit {arrow_schema(source).field(column.name).type}",
        f"Give the row a value that fits, or carry the column as text (`types: {{{column.name}: text}}` under its rule "
        "in `tables:`); then `penstock retry`",
    )


def _altered(source: CopySource, how: str) -> RangeVoid:
    return RangeVoid(
        f"table {source.schema.table} was altered while it was copied: {how}",
        "What was read of it is void; its copy starts again by itself with its new columns",
    )


def _place(range: CopyRange) -> str:
    return f"range {range.number} of its copy"


def _doing(range: CopyRange) -> str:
    return f"copying range {range.number} of table {range.table}"

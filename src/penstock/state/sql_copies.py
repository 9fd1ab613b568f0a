"""Copies that are under way in the SQL state store: their ranges, notes and figures. Called by `sql.py`, inside its
transactions; `key` is `table_key` of the copied table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, case, delete, func, insert, select, update

from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.state.sql_statements import of_destination, put, same_table
from penstock.state.sql_tables import ANOMALIES, COPIES, COPY_NOTES, COPY_RANGES, RESCUED
from penstock.state.store import CopyProgress, CopyRecord, RangeRecord

Key = Mapping[str, Any]


def begin(connection: Connection, key: Key, copy: str, fingerprint: str, ranges: Sequence[tuple[str, int]]) -> None:
    earlier = connection.scalar(select(COPIES.c.attempts).filter_by(**key, ended=None)) or 0
    for kept in (COPIES, COPY_RANGES, COPY_NOTES, RESCUED, ANOMALIES):
        connection.execute(delete(kept).filter_by(**key))
    head = {"copy": copy, "started": datetime.now(UTC), "fingerprint": fingerprint, "attempts": earlier + 1}
    connection.execute(insert(COPIES).values(**key, **head, ranges=len(ranges), rows=0, bytes=0))
    if ranges:
        connection.execute(
            insert(COPY_RANGES),
            [
                {**key, "number": number, "copy": copy, "content": content, "rows": 0, "bytes": size}
                for number, (content, size) in enumerate(ranges)
            ],
        )


def finish_range(connection: Connection, place: Key, position: Position, part: str, rows: int) -> bool:
    """`place` is the key with the copy and the range's number. Whether that copy is still the one under way."""
    values = {"position": position, "part": part, "rows": rows}
    return connection.execute(update(COPY_RANGES).filter_by(**place).values(**values)).rowcount == 1


def note(connection: Connection, key: Key, text: str) -> None:
    if text:
        put(connection, COPY_NOTES, key, {"note": text})
    else:
        connection.execute(delete(COPY_NOTES).filter_by(**key))


def under_way(connection: Connection, key: Key) -> CopyRecord | None:
    open_copy = select(COPIES).filter_by(**key, ended=None).subquery()
    rows = connection.execute(
        select(
            *open_copy.c["copy", "started", "fingerprint", "attempts"],
            COPY_NOTES.c.note,
            *COPY_RANGES.c["number", "content", "position", "part", "rows", "bytes"],
        )
        .select_from(open_copy)
        .outerjoin(COPY_NOTES, same_table(open_copy, COPY_NOTES))
        .outerjoin(COPY_RANGES, same_table(open_copy, COPY_RANGES))
        .order_by(COPY_RANGES.c.number)
    ).all()
    if not rows:
        return None
    head = rows[0]
    return CopyRecord(
        head.copy,
        head.started,
        head.fingerprint,
        tuple(
            RangeRecord(row.number, row.content, row.position, row.part, row.rows, row.bytes)
            for row in rows
            if row.number is not None
        ),
        head.attempts,
        head.note or "",
    )


def progress(connection: Connection, destination: str) -> dict[TableId, CopyProgress]:
    finished = COPY_RANGES.c.position.is_not(None)
    copies = connection.execute(
        select(
            *COPIES.c,
            func.count(COPY_RANGES.c.position).label("finished"),
            func.coalesce(func.sum(COPY_RANGES.c.rows), 0).label("finished_rows"),
            func.coalesce(func.sum(case((finished, COPY_RANGES.c.bytes))), 0).label("finished_bytes"),
            func.coalesce(func.sum(COPY_RANGES.c.bytes), 0).label("all_bytes"),
        )
        .select_from(COPIES.outerjoin(COPY_RANGES, same_table(COPIES, COPY_RANGES)))
        .where(COPIES.c.destination == destination)
        .group_by(*COPIES.c)
    ).all()
    notes = connection.execute(of_destination(COPY_NOTES, destination)).all()
    note_of = {TableId(row.table_schema, row.table_name): row.note for row in notes}
    found = {table: CopyProgress(note=text) for table, text in note_of.items()}
    for row in copies:
        table, over = TableId(row.table_schema, row.table_name), row.ended is not None
        found[table] = CopyProgress(
            started=row.started,
            ended=row.ended,
            attempts=row.attempts,
            ranges=row.ranges,
            ranges_finished=row.ranges if over else row.finished,
            rows=row.rows if over else int(row.finished_rows),
            bytes=row.bytes if over else int(row.finished_bytes),
            bytes_total=row.bytes if over else int(row.all_bytes),
            note=note_of.get(table, ""),
        )
    return dict(sorted(found.items()))


def end(connection: Connection, key: Key) -> None:
    """Its totals stay if all of it was read; nothing does otherwise."""
    ranges = COPY_RANGES.c
    unfinished, rows, size = connection.execute(
        select(
            func.count() - func.count(ranges.position),
            func.coalesce(func.sum(ranges.rows), 0),
            func.coalesce(func.sum(ranges.bytes), 0),
        ).filter_by(**key)
    ).one()
    open_copy = {**key, "ended": None}
    if unfinished:
        connection.execute(delete(COPIES).filter_by(**open_copy))
    else:
        totals = {"ended": datetime.now(UTC), "rows": int(rows), "bytes": int(size)}
        connection.execute(update(COPIES).filter_by(**open_copy).values(**totals))
    for kept in (COPY_RANGES, COPY_NOTES):
        connection.execute(delete(kept).filter_by(**key))

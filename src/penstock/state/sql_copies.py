"""Copies under way in the SQL state store: their ranges, notes and figures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import case, delete, func, insert, select, update

from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.state.sql_part import SqlPart, put, same_table, table_of
from penstock.state.sql_tables import ANOMALIES, COPIES, COPY_NOTES, COPY_RANGES, RESCUED
from penstock.state.store import CopyProgress, CopyRecord, RangeRecord


class SqlCopyRecords(SqlPart):
    def begin_copy(
        self, destination: str, table: TableId, copy: str, fingerprint: str, ranges: Sequence[tuple[str, int]]
    ) -> None:
        key = self._key(destination, table)
        with self._writing() as connection:
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

    def finish_range(
        self, destination: str, table: TableId, copy: str, number: int, position: Position, part: str, rows: int
    ) -> bool:
        place = {**self._key(destination, table), "copy": copy, "number": number}
        values = {"position": position, "part": part, "rows": rows}
        with self._transaction() as connection:
            return connection.execute(update(COPY_RANGES).filter_by(**place).values(**values)).rowcount == 1

    def note_copy(self, destination: str, table: TableId, note: str) -> None:
        key = self._key(destination, table)
        with self._writing() as connection:
            if note:
                put(connection, COPY_NOTES, key, {"note": note})
            else:
                connection.execute(delete(COPY_NOTES).filter_by(**key))

    def copy_of(self, destination: str, table: TableId) -> CopyRecord | None:
        key = self._key(destination, table)
        open_copy = select(COPIES).filter_by(**key, ended=None).subquery()
        found = (
            select(
                *open_copy.c["copy", "started", "fingerprint", "attempts"],
                COPY_NOTES.c.note,
                *COPY_RANGES.c["number", "content", "position", "part", "rows", "bytes"],
            )
            .select_from(open_copy)
            .outerjoin(COPY_NOTES, same_table(open_copy, COPY_NOTES))
            .outerjoin(COPY_RANGES, same_table(open_copy, COPY_RANGES))
            .order_by(COPY_RANGES.c.number)
        )
        with self._transaction() as connection:
            rows = connection.execute(found).all()
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

    def copy_progress(self, destination: str) -> dict[TableId, CopyProgress]:
        with self._transaction() as connection:
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
                .where(COPIES.c.source == self._source, COPIES.c.destination == destination)
                .group_by(*COPIES.c)
            ).all()
            notes = connection.execute(self._own(COPY_NOTES, destination)).all()
            note_of = {table_of(row): row.note for row in notes}
            found = {table: CopyProgress(note=text) for table, text in note_of.items()}
            for row in copies:
                table, over = table_of(row), row.ended is not None
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

    def end_copy(self, destination: str, table: TableId) -> None:
        """Its totals stay if all of it was read; nothing does otherwise."""
        key = self._key(destination, table)
        with self._writing() as connection:
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

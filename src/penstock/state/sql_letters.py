"""Dead letters in the SQL state store: events that streams went on without, and which of them are to be sent again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, text, update

from penstock.model.dead_letter import AskedLetter, DeadLetter, KeptLetter, LetterCount, headers_json, headers_of
from penstock.model.quarantine import read_message, write_message
from penstock.model.table import TableId
from penstock.state.sql_part import SqlPart, put, table_of
from penstock.state.sql_tables import LETTER_REQUESTS, LETTERS, LETTERS_DROPPED

_BY_TABLE = (LETTERS.c.table_schema, LETTERS.c.table_name)
_ASKED = LETTERS.c.id.in_(select(LETTER_REQUESTS.c.letter)).label("asked")


class SqlDeadLetters(SqlPart):
    def keep_letters(
        self, destination: str, letters: Sequence[DeadLetter], *, most: int, drop_oldest: bool = False
    ) -> bool:
        own, now = {"source": self._source, "destination": destination}, datetime.now(UTC)
        with self._writing() as connection:
            known = select(*_BY_TABLE, LETTERS.c.place, LETTERS.c.shard).filter_by(**own)
            there = {(TableId(schema, name), *place) for schema, name, *place in connection.execute(known)}
            fresh = [one for one in letters if (one.table, one.place, one.shard) not in there]
            excess = len(there) + len(fresh) - most if fresh else 0
            if excess > 0 and not drop_oldest:
                return False
            for one in letters:
                key = {**self._key(destination, one.table), "place": one.place, "shard": one.shard}
                if (one.table, one.place, one.shard) in there:
                    connection.execute(update(LETTERS).filter_by(**key).values(code=one.code, reason=one.reason))
                else:
                    values = {**key, **_values(one)}
                    connection.execute(insert(LETTERS).values(**values, at=now, tried_at=now, attempts=1))
            if excess > 0:
                oldest = select(LETTERS.c.id).filter_by(**own).order_by(LETTERS.c.id).limit(excess)
                self._drop(connection, destination, LETTERS.c.id.in_(oldest.scalar_subquery()))
        return True

    def letters(self, destination: str) -> list[KeptLetter]:
        wanted = select(LETTERS, _ASKED).filter_by(source=self._source, destination=destination)
        with self._transaction() as connection:
            rows = connection.execute(wanted.order_by(LETTERS.c.id)).all()
        return [_letter(row) for row in rows]

    def letter_counts(self, destination: str) -> dict[TableId, LetterCount]:
        counted = select(*_BY_TABLE, func.count()).filter_by(source=self._source, destination=destination)
        with self._transaction() as connection:
            rows = connection.execute(counted.group_by(*_BY_TABLE)).all()
            gone = {table_of(row): row.dropped for row in connection.execute(self._own(LETTERS_DROPPED, destination))}
        kept = {TableId(schema, name): number for schema, name, number in rows}
        return {table: LetterCount(kept.get(table, 0), gone.get(table, 0)) for table in sorted({*kept, *gone})}

    def release_letters(self, numbers: Collection[int]) -> None:
        with self._transaction() as connection:
            self._delete(connection, LETTERS.c.id.in_(numbers))

    def expire_letters(self, destination: str, before: datetime) -> int:
        with self._writing() as connection:
            return self._drop(connection, destination, LETTERS.c.at < before)

    def ask_letters(self, numbers: Collection[int]) -> list[int]:
        there = select(LETTERS).filter_by(source=self._source).where(LETTERS.c.id.in_(numbers))
        with self._writing() as connection:
            unasked = there.where(LETTERS.c.id.not_in(select(LETTER_REQUESTS.c.letter))).order_by(LETTERS.c.id)
            if connection.dialect.name == "postgresql":  # numbers must become visible in their order
                connection.execute(text(f"lock table {LETTER_REQUESTS.name} in exclusive mode"))
            fresh, now = connection.execute(unasked).all(), datetime.now(UTC)
            for row in fresh:
                key = self._key(row.destination, table_of(row))
                connection.execute(insert(LETTER_REQUESTS).values(**key, letter=row.id, at=now))
        return [row.id for row in fresh]

    def asked_letters(self, destination: str) -> list[AskedLetter]:
        joined = LETTERS.join(LETTER_REQUESTS, LETTER_REQUESTS.c.letter == LETTERS.c.id)
        wanted = (
            select(LETTERS, _ASKED, LETTER_REQUESTS.c.id.label("request"), LETTER_REQUESTS.c.at.label("asked_at"))
            .select_from(joined)
            .where(LETTERS.c.source == self._source, LETTERS.c.destination == destination)
            .order_by(LETTER_REQUESTS.c.id)
        )
        with self._transaction() as connection:
            rows = connection.execute(wanted).all()
        return [AskedLetter(row.request, row.asked_at, _letter(row)) for row in rows]

    def fail_letter(self, number: int, code: str, reason: str) -> None:
        own = update(LETTERS).filter_by(source=self._source, id=number)
        tried = {"tried_at": datetime.now(UTC), "attempts": LETTERS.c.attempts + 1}
        with self._transaction() as connection:
            connection.execute(own.values(**tried, code=code, reason=reason))
            connection.execute(delete(LETTER_REQUESTS).filter_by(source=self._source, letter=number))

    def _drop(self, connection: Connection, destination: str, which: ColumnElement[bool]) -> int:
        """Delete letters of the destination and count them as dropped."""
        own = (LETTERS.c.source == self._source, LETTERS.c.destination == destination, which)
        by_table = select(*_BY_TABLE, func.count()).where(*own).group_by(*_BY_TABLE)
        for schema, name, number in connection.execute(by_table).all():
            key = self._key(destination, TableId(schema, name))
            before = connection.scalar(select(LETTERS_DROPPED.c.dropped).filter_by(**key)) or 0
            put(connection, LETTERS_DROPPED, key, {"dropped": before + number})
        return self._delete(connection, *own)

    def _delete(self, connection: Connection, *which: ColumnElement[bool]) -> int:
        own = (LETTERS.c.source == self._source, *which)
        gone = list(connection.scalars(select(LETTERS.c.id).where(*own)))
        connection.execute(delete(LETTER_REQUESTS).where(LETTER_REQUESTS.c.letter.in_(gone)))
        connection.execute(delete(LETTERS).where(LETTERS.c.id.in_(gone)))
        return len(gone)


def _values(letter: DeadLetter) -> dict[str, Any]:
    return {
        "op": letter.op,
        "key": letter.key,
        "topic": letter.topic,
        "code": letter.code,
        "reason": letter.reason,
        "message": None if letter.message is None else write_message(letter.message),
        "value": letter.value,
        "headers": headers_json(letter.headers),
    }


def _letter(row: Row[Any]) -> KeptLetter:
    letter = DeadLetter(
        table=table_of(row),
        place=row.place,
        op=row.op,
        key=None if row.key is None else bytes(row.key),
        code=row.code,
        reason=row.reason,
        topic=row.topic,
        shard=row.shard,
        message=None if row.message is None else read_message(row.message),
        value=None if row.value is None else bytes(row.value),
        headers=headers_of(row.headers),
    )
    return KeptLetter(
        id=row.id,
        destination=row.destination,
        at=row.at,
        tried_at=row.tried_at,
        attempts=row.attempts,
        asked=bool(row.asked),
        letter=letter,
    )

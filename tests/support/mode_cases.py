"""What each mode makes of what happens to a table: statements at the source, and the rows at the destination.

Every case has a table `t (id int primary key, word text, large text)`; `large` is stored out of line, so an UPDATE
that leaves it alone does not send it. Rows are written (id, word, large), and `large` as one letter that stands for
many. In a history, moments are numbers of transactions: (…, from, to, deleted), None for the beginning and the end of
time. An event is (op, before, after): before is the key alone, as Postgres sends it, and a value that it does not send
is UNSENT.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

TABLE = "create table {t} (id int primary key, word text, large text)"
STORAGE = "alter table {t} alter column large set storage external"
LENGTH = 5000
UNSENT = "…"

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    name: str
    copied: tuple[str, ...]  # before the pipeline knows the table
    transactions: tuple[tuple[str, ...], ...]
    clone: Rows  # which is what the source has
    append: Rows
    history: Rows
    events: Rows


def insert(id: int, word: str, large: str = "A") -> str:
    return f"insert into {{t}} values ({id}, '{word}', repeat('{large}', {LENGTH}))"


CASES = (
    Case(
        "insert",
        (insert(1, "a"),),
        ((insert(2, "b"),),),
        clone=[(1, "a", "A"), (2, "b", "A")],
        append=[(1, "a", "A"), (2, "b", "A")],
        history=[(1, "a", "A", None, None, False), (2, "b", "A", None, None, False)],
        events=[("read", None, (1, "a", "A")), ("insert", None, (2, "b", "A"))],
    ),
    Case(
        "update",
        (insert(1, "a"),),
        (("update {t} set word = 'b'",), ("update {t} set word = 'c', large = null",)),
        clone=[(1, "c", None)],
        append=[(1, "c", None)],
        history=[(1, "a", "A", None, 1, False), (1, "b", "A", 1, 2, False), (1, "c", None, 2, None, False)],
        events=[
            ("read", None, (1, "a", "A")),
            ("update", None, (1, "b", UNSENT)),
            ("update", None, (1, "c", None)),
        ],
    ),
    Case(
        "update that changes nothing",
        (insert(1, "a"),),
        (("update {t} set word = word",), ("update {t} set word = 'b'", "update {t} set word = 'a'")),
        clone=[(1, "a", "A")],
        append=[(1, "a", "A")],
        history=[(1, "a", "A", None, None, False)],
        events=[
            ("read", None, (1, "a", "A")),
            ("update", None, (1, "a", UNSENT)),
            ("update", None, (1, "b", UNSENT)),
            ("update", None, (1, "a", UNSENT)),
        ],
    ),
    Case(
        "delete",
        (insert(1, "a"), insert(2, "b")),
        (("delete from {t} where id = 1",),),
        clone=[(2, "b", "A")],
        append=[(1, "a", "A"), (2, "b", "A")],
        history=[(1, "a", "A", None, 1, True), (2, "b", "A", None, None, False)],
        events=[("read", None, (1, "a", "A")), ("read", None, (2, "b", "A")), ("delete", (1,), None)],
    ),
    Case(
        "truncate",
        (insert(1, "a"), insert(2, "b")),
        (("update {t} set word = 'c' where id = 1",), ("truncate {t}",), (insert(2, "d"), insert(3, "e"))),
        clone=[(2, "d", "A"), (3, "e", "A")],
        append=[(1, "c", "A"), (2, "d", "A"), (3, "e", "A")],
        history=[
            (1, "a", "A", None, 1, False),
            (1, "c", "A", 1, 2, True),
            (2, "b", "A", None, 2, True),
            (2, "d", "A", 3, None, False),
            (3, "e", "A", None, None, False),
        ],
        events=[
            ("read", None, (1, "a", "A")),
            ("read", None, (2, "b", "A")),
            ("update", None, (1, "c", UNSENT)),
            ("truncate", None, None),
            ("insert", None, (2, "d", "A")),
            ("insert", None, (3, "e", "A")),
        ],
    ),
    Case(
        "key change",
        (insert(1, "a"), insert(2, "b")),
        (("update {t} set id = 9 where id = 1",), ("update {t} set id = 1 where id = 2",)),
        clone=[(1, "b", "A"), (9, "a", "A")],
        append=[(1, "b", "A"), (9, "a", "A")],
        history=[
            (1, "a", "A", None, 1, True),
            (1, "b", "A", 2, None, False),
            (2, "b", "A", None, 2, True),
            (9, "a", "A", None, None, False),
        ],
        events=[
            ("read", None, (1, "a", "A")),
            ("read", None, (2, "b", "A")),
            ("update", (1,), (9, "a", UNSENT)),
            ("update", (2,), (1, "b", UNSENT)),
        ],
    ),
    Case(
        "keys that swap in one transaction",
        (insert(1, "a"), insert(2, "b")),
        (
            (
                "update {t} set id = 9 where id = 1",
                "update {t} set id = 1 where id = 2",
                "update {t} set id = 2 where id = 9",
            ),
        ),
        clone=[(1, "b", "A"), (2, "a", "A")],
        append=[(1, "b", "A"), (2, "a", "A")],
        history=[
            (1, "a", "A", None, 1, False),
            (1, "b", "A", 1, None, False),
            (2, "a", "A", 1, None, False),
            (2, "b", "A", None, 1, False),
        ],
        events=[
            ("read", None, (1, "a", "A")),
            ("read", None, (2, "b", "A")),
            ("update", (1,), (9, "a", UNSENT)),
            ("update", (2,), (1, "b", UNSENT)),
            ("update", (9,), (2, "a", UNSENT)),
        ],
    ),
    Case(
        "insert, delete, insert",
        (),
        ((insert(1, "a"),), ("delete from {t}",), (insert(1, "b"),)),
        clone=[(1, "b", "A")],
        append=[(1, "b", "A")],
        history=[(1, "a", "A", None, 2, True), (1, "b", "A", 3, None, False)],
        events=[("insert", None, (1, "a", "A")), ("delete", (1,), None), ("insert", None, (1, "b", "A"))],
    ),
    Case(
        "insert, delete, insert in one transaction",
        (),
        ((insert(1, "a"), "delete from {t}", insert(1, "b"), insert(2, "c"), "delete from {t} where id = 2"),),
        clone=[(1, "b", "A")],
        append=[(1, "b", "A"), (2, "c", "A")],
        history=[(1, "b", "A", None, None, False)],
        events=[
            ("insert", None, (1, "a", "A")),
            ("delete", (1,), None),
            ("insert", None, (1, "b", "A")),
            ("insert", None, (2, "c", "A")),
            ("delete", (2,), None),
        ],
    ),
    Case(
        "values that are not sent",
        (insert(1, "a", "X"),),
        (
            ("update {t} set word = 'b'",),
            ("update {t} set word = 'c', large = repeat('Y', 5000)",),
            ("update {t} set word = 'd'",),
            ("update {t} set id = 2, word = 'e'",),
        ),
        clone=[(2, "e", "Y")],
        append=[(2, "e", "Y")],
        history=[
            (1, "a", "X", None, 1, False),
            (1, "b", "X", 1, 2, False),
            (1, "c", "Y", 2, 3, False),
            (1, "d", "Y", 3, 4, True),
            (2, "e", "Y", None, None, False),
        ],
        events=[
            ("read", None, (1, "a", "X")),
            ("update", None, (1, "b", UNSENT)),
            ("update", None, (1, "c", "Y")),
            ("update", None, (1, "d", UNSENT)),
            ("update", (1,), (2, "e", UNSENT)),
        ],
    ),
    Case(
        "several in one transaction",
        (insert(1, "a"), insert(2, "b"), insert(3, "c")),
        (
            (
                "update {t} set word = 'x' where id = 1",
                "update {t} set word = 'y' where id = 1",
                "delete from {t} where id = 2",
                "update {t} set word = 'z' where id = 3",
                "delete from {t} where id = 3",
                insert(4, "new"),
            ),
        ),
        clone=[(1, "y", "A"), (4, "new", "A")],
        append=[(1, "y", "A"), (2, "b", "A"), (3, "z", "A"), (4, "new", "A")],
        history=[
            (1, "a", "A", None, 1, False),
            (1, "y", "A", 1, None, False),
            (2, "b", "A", None, 1, True),
            (3, "c", "A", None, 1, True),
            (4, "new", "A", None, None, False),
        ],
        events=[
            ("read", None, (1, "a", "A")),
            ("read", None, (2, "b", "A")),
            ("read", None, (3, "c", "A")),
            ("update", None, (1, "x", UNSENT)),
            ("update", None, (1, "y", UNSENT)),
            ("delete", (2,), None),
            ("update", None, (3, "z", UNSENT)),
            ("delete", (3,), None),
            ("insert", None, (4, "new", "A")),
        ],
    ),
    Case(
        "a savepoint that is rolled back",
        (insert(1, "a"),),
        (("savepoint s", "update {t} set word = 'b'", "rollback to s", insert(2, "c")),),
        clone=[(1, "a", "A"), (2, "c", "A")],
        append=[(1, "a", "A"), (2, "c", "A")],
        history=[(1, "a", "A", None, None, False), (2, "c", "A", None, None, False)],
        events=[("read", None, (1, "a", "A")), ("insert", None, (2, "c", "A"))],
    ),
)


def told(mode: str, rows: Iterable[dict[str, Any]]) -> Rows:
    """What a table in the mode holds, as cases write it; of moments, the order alone is known."""
    if mode == "events":
        in_order = sorted(rows, key=lambda event: (event["commit_position"], event["ordinal"]))
        return [_event(event) for event in in_order]
    values = [_values(row) for row in rows]
    return ranked([_version(row) for row in values]) if mode == "history" else sorted(values, key=repr)


def wanted(mode: str, case: Case) -> Rows:
    rows: Rows = getattr(case, mode)
    return ranked(rows) if mode == "history" else rows if mode == "events" else sorted(rows, key=repr)


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    """The row's cells, `large` as its letter. Only as much of it as there must be becomes one."""
    large = row["large"]
    letter = large[0] if large is not None and large == large[0] * LENGTH else large
    return tuple(letter if name == "large" else cell for name, cell in row.items())


def _version(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:3], *(None if at.year in (1900, 9999) else at for at in row[3:5]), row[5])


def _event(event: dict[str, Any]) -> tuple[Any, ...]:
    before, after, unchanged = event["before"], event["after"], event["unchanged"]
    if after is not None:
        cells = zip(("id", "word", "large"), _values(after), strict=True)
        after = tuple(UNSENT if name in (unchanged or ()) else cell for name, cell in cells)
    if before is not None:
        before = tuple(cell for cell in _values(before) if cell is not None)
    return event["op"], before, after


def ranked(rows: Rows) -> Rows:
    """Versions with their moments as ranks among all of the table: what is left when only the order is known."""
    moments = sorted({moment for row in rows for moment in row[-3:-1] if moment is not None})
    rank = {moment: place for place, moment in enumerate(moments)}
    return sorted(((*row[:-3], *(rank.get(moment) for moment in row[-3:-1]), row[-1]) for row in rows), key=repr)

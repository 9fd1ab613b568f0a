"""What each mode makes of what happens to a table: statements at the source, and the rows at the destination.

Every case has a table `t (id int primary key, word text, large text)`; `large` is stored out of line, so an UPDATE
that leaves it alone does not send it. Rows are written (id, word, large), and `large` as one letter that stands for
many. In a history, moments are numbers of transactions: (…, from, to, deleted), None for the beginning and the end of
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TABLE = "create table {t} (id int primary key, word text, large text)"
STORAGE = "alter table {t} alter column large set storage external"
LENGTH = 5000

Rows = list[tuple[Any, ...]]


def value(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row as the destination has it: the letter become many."""
    return (*row[:2], None if row[2] is None else row[2] * LENGTH, *row[3:])


@dataclass(frozen=True)
class Case:
    name: str
    copied: tuple[str, ...]  # before the pipeline knows the table
    transactions: tuple[tuple[str, ...], ...]
    clone: Rows
    append: Rows
    history: Rows


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
    ),
    Case(
        "update",
        (insert(1, "a"),),
        (("update {t} set word = 'b'",), ("update {t} set word = 'c', large = null",)),
        clone=[(1, "c", None)],
        append=[(1, "c", None)],
        history=[(1, "a", "A", None, 1, False), (1, "b", "A", 1, 2, False), (1, "c", None, 2, None, False)],
    ),
    Case(
        "update that changes nothing",
        (insert(1, "a"),),
        (("update {t} set word = word",), ("update {t} set word = 'b'", "update {t} set word = 'a'")),
        clone=[(1, "a", "A")],
        append=[(1, "a", "A")],
        history=[(1, "a", "A", None, None, False)],
    ),
    Case(
        "delete",
        (insert(1, "a"), insert(2, "b")),
        (("delete from {t} where id = 1",),),
        clone=[(2, "b", "A")],
        append=[(1, "a", "A"), (2, "b", "A")],
        history=[(1, "a", "A", None, 1, True), (2, "b", "A", None, None, False)],
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
    ),
    Case(
        "insert, delete, insert",
        (),
        ((insert(1, "a"),), ("delete from {t}",), (insert(1, "b"),)),
        clone=[(1, "b", "A")],
        append=[(1, "b", "A")],
        history=[(1, "a", "A", None, 2, True), (1, "b", "A", 3, None, False)],
    ),
    Case(
        "insert, delete, insert in one transaction",
        (),
        ((insert(1, "a"), "delete from {t}", insert(1, "b"), insert(2, "c"), "delete from {t} where id = 2"),),
        clone=[(1, "b", "A")],
        append=[(1, "b", "A"), (2, "c", "A")],
        history=[(1, "b", "A", None, None, False)],
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
    ),
    Case(
        "a transaction that is rolled back",
        (insert(1, "a"),),
        (("savepoint s", "update {t} set word = 'b'", "rollback to s", insert(2, "c")),),
        clone=[(1, "a", "A"), (2, "c", "A")],
        append=[(1, "a", "A"), (2, "c", "A")],
        history=[(1, "a", "A", None, None, False), (2, "c", "A", None, None, False)],
    ),
)


EVENTS = {
    "delete": ["read 1", "read 2", "delete 1"],
    "truncate": ["read 1", "read 2", "update 1 without large", "truncate", "insert 2", "insert 3"],
    "key change": ["read 1", "read 2", "update 9 from 1 without large", "update 1 from 2 without large"],
    "insert, delete, insert": ["insert 1", "delete 1", "insert 1"],
    "values that are not sent": [
        "read 1",
        "update 1 without large",
        "update 1",
        "update 1 without large",
        "update 2 from 1 without large",
    ],
}


def told(event: dict[str, Any]) -> str:
    """An event in words, as in EVENTS."""
    before, after, unchanged = event["before"], event["after"], event["unchanged"]
    row = after or before
    text = event["op"] if row is None else f"{event['op']} {row['id']}"
    if before and after:
        text += f" from {before['id']}"
    return text + (f" without {', '.join(unchanged)}" if unchanged else "")


def ranked(rows: Rows) -> Rows:
    """Versions with their moments as ranks among all of the table: what is left when only the order is known."""
    moments = sorted({moment for row in rows for moment in row[-3:-1] if moment is not None})
    rank = {moment: place for place, moment in enumerate(moments)}
    return sorted(((*row[:-3], *(rank.get(moment) for moment in row[-3:-1]), row[-1]) for row in rows), key=repr)

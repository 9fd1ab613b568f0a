"""Cells that an UPDATE did not send, for a large value that it left unchanged: what becomes of them, case by case.

Each case is a stream of transactions over a table (id, note, big), in which `…` stands for a cell that was not sent,
and what the destination must hold afterwards, if it held `BEFORE`. Every case is played under each replica identity,
and with a batch boundary after each transaction, after each second one, and after none: the outcome must be the same.
`move` is an UPDATE that changes the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import KeyRequired, RowIncomplete, TableError
from penstock.fold.clone import fold_clone
from penstock.model.table import TableSchema
from pgoutput_messages import INT8, TEXT, UNSENT, Cell, Stream, delete, insert, table_schema, truncate, update

COLUMNS = {"id": INT8, "note": TEXT, "big": TEXT}
Row = tuple[int, str | None, str | None]
BEFORE: dict[int, tuple[str | None, str | None]] = {1: ("a", "ONE"), 2: ("b", "TWO"), 3: ("c", None)}


@dataclass(frozen=True)
class Case:
    transactions: list[list[str]]
    after: set[Row]


CASES = {
    # ---- one update ----
    "kept as it was": Case([["update 1 x …"]], {(1, "x", "ONE"), (2, "b", "TWO"), (3, "c", None)}),
    "kept as it was: NULL": Case([["update 3 x …"]], {(1, "a", "ONE"), (2, "b", "TWO"), (3, "x", None)}),
    "both columns at once": Case([["update 1 … …"]], {(1, "a", "ONE"), (2, "b", "TWO"), (3, "c", None)}),
    "one row's, not another's": Case(
        [["update 1 x …", "update 2 y NEW", "update 3 z …"]], {(1, "x", "ONE"), (2, "y", "NEW"), (3, "z", None)}
    ),
    # ---- several updates of one row ----
    "many, none sends it": Case(
        [["update 1 x …", "update 1 y …"], ["update 1 … …", "update 1 z …"]],
        {(1, "z", "ONE"), (2, "b", "TWO"), (3, "c", None)},
    ),
    "sent in between": Case(
        [["update 1 x …", "update 1 y NEW", "update 1 z …"]], {(1, "z", "NEW"), (2, "b", "TWO"), (3, "c", None)}
    ),
    "set to NULL in between": Case(
        [["update 1 x -"], ["update 1 y …"]], {(1, "y", None), (2, "b", "TWO"), (3, "c", None)}
    ),
    "its image in an earlier transaction": Case(
        [["insert 4 d FOUR"], ["update 4 x …"], ["update 4 y …"]],
        {(1, "a", "ONE"), (2, "b", "TWO"), (3, "c", None), (4, "y", "FOUR")},
    ),
    "inserted and updated in one transaction": Case(
        [["insert 4 d FOUR", "update 4 … …", "update 4 x …"]],
        {(1, "a", "ONE"), (2, "b", "TWO"), (3, "c", None), (4, "x", "FOUR")},
    ),
    # ---- over a key change ----
    "the key changes": Case([["move 1 9 x …"]], {(9, "x", "ONE"), (2, "b", "TWO"), (3, "c", None)}),
    "the key changes, then another update": Case(
        [["move 1 9 x …"], ["update 9 y …"]], {(9, "y", "ONE"), (2, "b", "TWO"), (3, "c", None)}
    ),
    "the key changes twice, and back": Case(
        [["move 1 9 x …"], ["move 9 8 … …", "move 8 1 y …"]], {(1, "y", "ONE"), (2, "b", "TWO"), (3, "c", None)}
    ),
    "sent before the key changes": Case(
        [["update 1 x NEW", "move 1 9 … …"]], {(9, "x", "NEW"), (2, "b", "TWO"), (3, "c", None)}
    ),
    "two rows swap their keys": Case(
        [["move 1 9 … …", "move 2 1 … …", "move 9 2 x …"]], {(1, "b", "TWO"), (2, "x", "ONE"), (3, "c", None)}
    ),
    "another row takes the key that was left": Case(
        [["move 1 9 x …"], ["insert 1 n NEW", "update 1 m …"]],
        {(9, "x", "ONE"), (1, "m", "NEW"), (2, "b", "TWO"), (3, "c", None)},
    ),
    "the row that moved is deleted, the key taken": Case(
        [["move 1 9 x …", "delete 9"], ["move 2 1 y …"]], {(1, "y", "TWO"), (3, "c", None)}
    ),
    # ---- deleted and made again ----
    "deleted and inserted with the same key": Case(
        [["delete 1", "insert 1 n NEW", "update 1 m …"]], {(1, "m", "NEW"), (2, "b", "TWO"), (3, "c", None)}
    ),
    "deleted and inserted in transactions apart": Case(
        [["update 1 x …"], ["delete 1"], ["insert 1 n -"], ["update 1 m …"]],
        {(1, "m", None), (2, "b", "TWO"), (3, "c", None)},
    ),
    "updated, then deleted": Case([["update 1 x …", "delete 1"]], {(2, "b", "TWO"), (3, "c", None)}),
    # ---- around a truncate ----
    "before a truncate": Case([["update 1 x …", "truncate"]], set()),
    "after a truncate": Case([["update 1 x …"], ["truncate", "insert 1 n NEW"], ["update 1 m …"]], {(1, "m", "NEW")}),
    "moved after a truncate": Case([["truncate", "insert 1 n NEW", "move 1 2 m …"]], {(2, "m", "NEW")}),
}


class Player:
    """Plays cases on the source's side, so that messages are what Postgres sends under the replica identity."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.rows: dict[str, tuple[Cell, Cell]] = {str(key): (note, big) for key, (note, big) in BEFORE.items()}

    def message(self, words: str) -> bytes:
        kind, *rest = words.split()
        cells: list[Cell] = [UNSENT if word == "…" else None if word == "-" else word for word in rest]
        full = self.identity == "full"
        if kind == "truncate":
            self.rows.clear()
            return truncate()
        key = rest[0]
        if kind == "delete":
            old = self.rows.pop(key)
            return delete(key, *old, full=True) if full else delete(key, None, None)
        if kind == "insert":
            self.rows[key] = (cells[1], cells[2])
            return insert(*cells)
        old = self.rows.pop(key)
        new_key = rest[0] if kind == "update" else rest[1]
        note, big = cells[-2:]
        self.rows[new_key] = (old[0] if note is UNSENT else note, old[1] if big is UNSENT else big)
        if full:
            return update(new_key, note, big, row=(key, *old))
        return update(new_key, note, big, key=(key, None, None) if kind == "move" else None)


class Held:
    """A destination that applies net effects, and nothing else."""

    def __init__(self) -> None:
        self.rows: dict[Any, Row] = {key: (key, note, big) for key, (note, big) in BEFORE.items()}
        self.fetched = 0

    def apply(self, schema: TableSchema, stream: Stream, position: int, until: int) -> None:
        net = fold_clone([stream.raw(schema)], position=position, until=until)
        rows = net.upserts.to_pylist()
        for fetch in net.fetches:
            for row, key in zip(fetch.rows.tolist(), fetch.keys.to_pylist(), strict=True):
                rows[row][fetch.column] = self.rows[key][("id", "note", "big").index(fetch.column)]
                self.fetched += 1
        if net.truncated:
            self.rows.clear()
        assert net.touched_keys is not None
        for key in net.touched_keys.to_pylist():
            self.rows.pop(key, None)
        self.rows |= {row["id"]: (row["id"], row["note"], row["big"]) for row in rows}


IDENTITIES = {"DEFAULT or USING INDEX": "key", "FULL": "full"}


@pytest.mark.parametrize("together", [1, 2, 100], ids=["batch each", "batch of two", "one batch"])
@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_unsent_cells(case: Case, identity: str, together: int) -> None:
    schema, player, stream, held = table_schema(COLUMNS, identity=identity), Player(identity), Stream(), Held()
    for transaction in case.transactions:
        stream.transaction(*map(player.message, transaction))
    for first in range(0, len(case.transactions), together):
        held.apply(schema, stream, (first + 1) * 100, (first + together + 1) * 100)
    assert set(held.rows.values()) == case.after
    assert {(int(key), *cells) for key, cells in player.rows.items()} == case.after, "the case itself is consistent"
    if identity == "full":
        assert held.fetched == 0, "under FULL everything is in the message"


def test_under_nothing_no_update_can_come() -> None:
    """Postgres refuses an UPDATE of a published table with REPLICA IDENTITY NOTHING; one from before is an error."""
    schema = table_schema(COLUMNS, identity="nothing")
    with pytest.raises(KeyRequired, match="REPLICA IDENTITY DEFAULT"):
        fold_clone([Stream().transaction(update("1", "x", UNSENT)).raw(schema)], position=0)
    net = fold_clone([Stream().transaction(insert("4", "d", "FOUR"), truncate()).raw(schema)], position=0)
    assert net.truncated


@pytest.mark.parametrize(
    "messages",
    [
        [insert("4", "d", UNSENT)],
        [insert("4", "d", UNSENT), update("4", "x", UNSENT)],
        [delete("4", None, None), insert("4", "d", UNSENT), update("4", "x", UNSENT)],
    ],
)
def test_a_row_that_a_filter_lets_in_without_its_value_is_said_to_be_incomplete(messages: list[bytes]) -> None:
    schema = table_schema(COLUMNS)
    with pytest.raises(RowIncomplete, match="row filter") as caught:
        fold_clone([Stream().transaction(*messages).raw(schema)], position=0)
    assert 'ALTER TABLE "public"."things" REPLICA IDENTITY FULL' in caught.value.solution
    assert isinstance(caught.value, TableError)


def test_an_incomplete_row_is_whole_once_its_value_is_sent() -> None:
    stream = Stream().transaction(insert("4", "d", UNSENT), update("4", "x", "FOUR"), update("4", "y", UNSENT))
    net = fold_clone([stream.raw(table_schema(COLUMNS))], position=0)
    assert net.upserts.to_pylist() == [{"id": 4, "note": "y", "big": "FOUR"}]
    assert net.fetches == ()

"""Rows and values of the binlog without a server: any cut into events, any bytes, and JSON as SELECT writes it."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from penstock.decode.dialect import read
from penstock.decode.mysql.json_binary import double_text, json_texts
from penstock.decode.mysql.types import BLOB, DATETIME2, ENUM, LONG, NEWDECIMAL, VARCHAR, column_type
from penstock.decode.undecodable import Undecodable
from penstock.errors import PenstockError
from penstock.model.change import DELETE, INSERT, UPDATE, RawChanges
from penstock.model.column_change import ColumnChange
from penstock.model.table import TableId, TableSchema
from penstock.source.mysql.catalogue import FoundColumn, schema_of
from penstock.source.mysql.row_pile import RowPile
from penstock.source.mysql.statements import Doing, Effect, effects

COLUMNS = [
    FoundColumn("id", column_type(LONG, -1), nullable=False),
    FoundColumn("name", column_type(VARCHAR, 300, charset="utf8mb4"), nullable=True),
    FoundColumn("kind", column_type(ENUM, 1, charset="utf8mb4", labels=("a", "b")), nullable=True),
    FoundColumn("amount", column_type(NEWDECIMAL, 10 << 8 | 2), nullable=True),
    FoundColumn("at", column_type(DATETIME2, 0), nullable=True),
    FoundColumn("body", column_type(BLOB, 2, charset="binary"), nullable=True),
]
Row = tuple[int, str | None]


def schema() -> TableSchema:
    return schema_of(TableId("shop", "t"), COLUMNS, ["id"])


def image(row: Row) -> bytes:
    number, name = row
    nulls = 0b111100 | (2 if name is None else 0)
    text = b"" if name is None else struct.pack("<H", len(name.encode())) + name.encode()
    return bytes([nulls]) + struct.pack("<i", number) + text


def pile_of(changes: list[tuple[int, list[Row]]]) -> RowPile:
    pile = RowPile(schema())
    for number, (op, rows) in enumerate(changes):
        pile.add(op, b"".join(map(image, rows)), (100 + number, number << 32, 100 + number, number, number))
    return pile


def batch_of(pile: RowPile) -> RawChanges:
    captured = pile.slice()
    assert captured is not None
    return RawChanges(captured.schema, captured.batch)


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_the_same_however_they_are_cut_into_events(seed: int) -> None:
    chosen = random.Random(seed)
    rows: list[Row] = [
        (chosen.randrange(-(2**31), 2**31), None if chosen.random() < 0.2 else "é" * chosen.randrange(120))
        for _ in range(500)
    ]
    events: list[tuple[int, list[Row]]] = []
    at = 0
    while at < len(rows):
        size = chosen.choice([1, 1, 1, 2, 5, 60])
        events.append((INSERT, rows[at : at + size]))
        at += size
    reader = read(batch_of(pile_of(events)))
    images = reader.images(np.arange(len(rows)))
    assert images.values(0).to_pylist() == [number for number, _ in rows]
    assert images.values(1).to_pylist() == [name for _, name in rows]
    assert images.values(5).null_count == len(rows)
    ordinals = reader.ordinal.tolist()
    assert ordinals == sorted(ordinals)
    assert len(set(ordinals)) == len(rows)


def test_updates_and_deletes_have_whole_old_rows() -> None:
    reader = read(batch_of(pile_of([(UPDATE, [(1, "old"), (2, "new")]), (DELETE, [(3, "gone"), (4, None)])])))
    assert reader.op.tolist() == [UPDATE, DELETE, DELETE]
    assert reader.old_is_full.all()
    assert reader.keys(np.arange(3))[0].to_pylist() == [2, 3, 4]
    assert reader.old_keys(np.arange(3))[0].to_pylist() == [1, 3, 4]
    assert reader.images(np.array([0])).values(1).to_pylist() == ["new"]
    assert reader.old_images(np.arange(3)).values(1).to_pylist() == ["old", "gone", None]


def test_an_event_that_cannot_be_cut_is_one_record_that_says_so() -> None:
    pile = pile_of([(INSERT, [(1, "a")])])
    pile.add(INSERT, b"\x00\x01\x02", (200, 0, 200, 1, 1))
    pile.add(INSERT, image((2, "b")), (300, 0, 300, 1, 1))
    changes = batch_of(pile)
    assert changes.batch.num_rows == 3
    with pytest.raises(Undecodable):
        read(changes)
    whole = RawChanges(changes.schema, changes.batch.take(pa.array([0, 2])))
    assert read(whole).keys(np.arange(2))[0].to_pylist() == [1, 2]


def test_fuzzed_events_never_crash_and_whole_ones_stay_right(full: bool) -> None:
    chosen = random.Random(3)
    good = [image((number, "x" * (number % 40))) for number in range(30)]
    for _ in range(1_000_000 if full else 400):
        content = bytearray(b"".join(chosen.sample(good, 3)))
        for _ in range(chosen.randrange(1, 4)):
            content[chosen.randrange(len(content))] = chosen.randrange(256)
        if chosen.random() < 0.3:
            del content[chosen.randrange(len(content)) :]
        pile = pile_of([(INSERT, [(7, "whole")])])
        pile.add(chosen.choice([INSERT, UPDATE, DELETE]), bytes(content), (200, 0, 200, 1, 1))
        changes = batch_of(pile)
        assert read(RawChanges(changes.schema, changes.batch.slice(0, 1))).keys(np.arange(1))[0].to_pylist() == [7]
        try:
            reader = read(RawChanges(changes.schema, changes.batch.slice(1)))
            images = reader.images(np.flatnonzero(reader.op != DELETE))
            for column in range(len(COLUMNS)):
                images.values(column)
        except (Undecodable, PenstockError):
            continue


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"", "null"),
        (b"\x04\x01", "true"),
        (b"\x05\xff\xff", "-1"),
        (b"\x0c\x02\xc3\xa9", '"é"'),
        (b"\x02\x02\x00\x0a\x00\x05\x01\x00\x04\x00\x00", "[1, null]"),
        (b"\x00\x01\x00\x0c\x00\x0b\x00\x01\x00\x05\x07\x00a", '{"a": 7}'),
        (b"\x0b" + struct.pack("<d", 1e20), "1e20"),
    ],
)
def test_json_is_written_as_select_does(document: bytes, text: str) -> None:
    assert json_texts(pa.array([document, None], pa.binary())).to_pylist() == [text, None]


def test_json_that_is_none_is_an_error_and_numbers_keep_their_digits() -> None:
    chosen = random.Random(5)
    for _ in range(2000):
        document = bytes(chosen.randrange(256) for _ in range(chosen.randrange(1, 30)))
        try:
            json_texts(pa.array([document], pa.binary()))
        except ValueError:
            continue
    assert [double_text(one) for one in (0.0, -0.5, 1e14, 1e-15, 1.5e300)] == [
        "0.0",
        "-0.5",
        "100000000000000.0",
        "0.000000000000001",
        "1.5e300",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TRUNCATE/**/`d`.`t`", [Effect(Doing.EMPTIED, TableId("d", "t"))]),
        ("/* a */ truncate table `we``ird` -- c", [Effect(Doing.EMPTIED, TableId("db", "we`ird"))]),
        ("RENAME TABLE a TO b", [Effect(Doing.REPLACED, TableId("db", one)) for one in "ab"]),
        ("DROP TABLE `y` /* generated by server */", [Effect(Doing.REPLACED, TableId("db", "y"))]),
        ("DROP TEMPORARY TABLE x", []),
        ("DROP DATABASE sem", [Effect(Doing.REPLACED, TableId("sem", "*"))]),
        ("CREATE TABLE IF NOT EXISTS t (a INT)", [Effect(Doing.REPLACED, TableId("db", "t"))]),
        ("CREATE TEMPORARY TABLE q (a INT)", []),
        ("CREATE UNIQUE INDEX i ON t (a)", []),
        ("ALTER TABLE t ADD INDEX i (a, b), COMMENT='x', ALGORITHM=INPLACE", []),
        ("ALTER IGNORE TABLE t ADD UNIQUE (a)", [Effect(Doing.REPLACED, TableId("db", "t"))]),
        ("ALTER TABLE t COMMENT 'x' ENGINE = MEMORY", [Effect(Doing.REPLACED, TableId("db", "t"))]),
        ("ALTER TABLE t ENGINE=InnoDB, ALTER a SET DEFAULT 5, ALTER COLUMN b DROP DEFAULT", []),
        (
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE o.u WITHOUT VALIDATION",
            [Effect(Doing.REPLACED, TableId("db", "t")), Effect(Doing.REPLACED, TableId("o", "u"))],
        ),
        (
            "ALTER TABLE t RENAME TO `b`, ADD c INT",
            [Effect(Doing.REPLACED, TableId("db", "t")), Effect(Doing.REPLACED, TableId("db", "b"))],
        ),
        ("ALTER TABLE t DROP PARTITION p", [Effect(Doing.REPLACED, TableId("db", "t"))]),
        ("INSERT INTO t VALUES (1)", [Effect(Doing.UNKNOWN)]),
        ("GRANT ALL ON *.* TO x", []),
        ("SOMETHING odd", [Effect(Doing.UNKNOWN)]),
        ("DROP TABLE", [Effect(Doing.UNKNOWN)]),
    ],
)
def test_statements_are_classified_or_unknown(text: str, expected: list[Effect]) -> None:
    assert effects("db", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ADD INDEX i (a), ADD c INT", [ColumnChange("", "c")]),
        (
            "ADD COLUMN IF NOT EXISTS `c d` decimal(8, 2) UNSIGNED NULL DEFAULT NULL COMMENT 'x, (y' AFTER b",
            [ColumnChange("", "c d", "b", optional=True)],
        ),
        ("ADD c char(3) CHARACTER SET latin1 COLLATE 'latin1_bin' FIRST", [ColumnChange("", "c", "")]),
        (
            "DROP c, DROP COLUMN IF EXISTS d RESTRICT",
            [ColumnChange("c", ""), ColumnChange("d", "", None, optional=True)],
        ),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", [ColumnChange("a", "b"), ColumnChange("b", "a")]),
        (
            "CHANGE a b datetime(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)",
            [ColumnChange("a", "b")],
        ),
        ("MODIFY c decimal(9,2) NOT NULL DEFAULT -1.5 AFTER a", [ColumnChange("c", "c", "a")]),
        ("MODIFY `c` enum('a','b)') DEFAULT 'a'", [ColumnChange("c", "c")]),
    ],
)
def test_an_alter_that_leaves_values_says_what_became_of_columns(text: str, expected: list[ColumnChange]) -> None:
    assert effects("db", f"ALTER TABLE t {text}") == [Effect(Doing.ALTERED, TableId("db", "t"), tuple(expected))]


@pytest.mark.parametrize(
    "text",
    [
        "ADD c int DEFAULT 5",
        "ADD c int NOT NULL",
        "ADD c int AUTO_INCREMENT UNIQUE",
        "ADD c int AS (a + 1)",
        "ADD c int GENERATED ALWAYS AS (a + 1) VIRTUAL",
        "ADD (c int, d int)",
        "ADD c timestamp ON UPDATE CURRENT_TIMESTAMP",
        "ADD PRIMARY KEY (a)",
        "ADD PARTITION (PARTITION p VALUES LESS THAN (5))",
        "ADD SYSTEM VERSIONING",
        "DROP PRIMARY KEY",
        "DROP PARTITION p",
        "DROP a, CONVERT TO CHARACTER SET utf8mb4",
        "MODIFY a bigint AUTO_INCREMENT",
        "MODIFY a int AS (b) STORED",
        "RENAME COLUMN a b",
        "/*!99999 DROP a */",
        "ORDER BY a",
        "TRUNCATE PARTITION p",
        "IMPORT TABLESPACE",
    ],
)
def test_an_alter_after_which_values_may_be_others_copies_the_table(text: str) -> None:
    assert effects("db", f"ALTER TABLE t {text}") == [Effect(Doing.REPLACED, TableId("db", "t"))]

"""pgoutput messages as capture reads them, and what it says to bytes that are none."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SourceError
from penstock.source.postgres import pgoutput
from penstock.source.postgres.pgoutput import Begin, Relation, RelationColumn

BEGIN = b"B" + struct.pack(">QqI", 0x16_B374_D848, 1_000_000, 731)
COMMIT = b"C" + struct.pack(">BQQq", 0, 0x1000, 0x1030, 0)
RELATION = (
    b"R"
    + struct.pack(">I", 16_385)
    + b"Odd Schema\0t\xc3\xa4ble\0d"
    + struct.pack(">H", 2)
    + b"\x01id\0"
    + struct.pack(">Ii", 20, -1)
    + b"\x00price\0"
    + struct.pack(">Ii", 1700, 655366)
)
TYPE = b"Y" + struct.pack(">I", 99_000) + b"public\0mood\0"
TRUNCATE = b"T" + struct.pack(">IBII", 2, 1, 16_385, 16_390)
KEEPALIVE = b"k" + struct.pack(">QqB", 0x2000, 0, 1)


def test_begin_gives_commit_position_time_and_transaction() -> None:
    assert pgoutput.read_begin(BEGIN) == Begin(0x16_B374_D848, 946_684_801_000_000, 731)


def test_commit_gives_the_position_after_it() -> None:
    assert pgoutput.read_commit_end(memoryview(COMMIT)) == 0x1030


def test_relation_gives_structure_as_of_its_place_in_the_wal() -> None:
    columns = (RelationColumn("id", True, 20, -1), RelationColumn("price", False, 1700, 655366))
    assert pgoutput.read_relation(RELATION) == Relation(16_385, "Odd Schema", "täble", "d", columns)


def test_an_empty_schema_is_the_servers_own() -> None:
    assert pgoutput.read_relation(RELATION.replace(b"Odd Schema", b"")).schema == "pg_catalog"


def test_type_truncate_and_keepalive() -> None:
    assert pgoutput.read_type(TYPE) == (99_000, "mood")
    assert pgoutput.read_truncate(TRUNCATE) == (16_385, 16_390)
    assert pgoutput.read_keepalive(KEEPALIVE) == (0x2000, True)


def test_a_status_update_confirms_one_position_for_write_flush_and_apply() -> None:
    message = pgoutput.status_update(0x1030, 946_684_800_000_007, reply=True)
    assert struct.unpack(">cQQQqB", message) == (b"r", 0x1030, 0x1030, 0x1030, 7, 1)


READERS = [
    (pgoutput.read_begin, BEGIN),
    (pgoutput.read_commit_end, COMMIT),
    (pgoutput.read_relation, RELATION),
    (pgoutput.read_type, TYPE),
    (pgoutput.read_truncate, TRUNCATE),
    (pgoutput.read_keepalive, KEEPALIVE),
]


@pytest.mark.parametrize(("read", "message"), READERS)
def test_a_message_that_is_cut_short_is_refused_in_plain_words(read: object, message: bytes) -> None:
    assert callable(read)
    for length in range(1, len(message)):
        with pytest.raises(SourceError, match="cannot be read"):
            read(message[:length])


@given(st.sampled_from(READERS), st.integers(1, 60), st.integers(0, 255))
def test_any_other_byte_is_read_or_refused(reader: tuple[object, bytes], at: int, byte: int) -> None:
    read, message = reader
    assert callable(read)
    at %= len(message)
    try:
        read(message[:at] + bytes([byte]) + message[at + 1 :])
    except SourceError as error:
        assert error.solution  # noqa: PT017

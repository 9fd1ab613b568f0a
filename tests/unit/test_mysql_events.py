"""Events as a MySQL 8.0.33 server sent them (`tests/support/mysql_8_0_binlog.bin`), put together to transactions.

They are one file of its binlog: single inserts, an update, a change of a key, a delete, a compressed transaction of 29
rows, XA in one phase, a savepoint that was rolled back, a truncate, and one insert more. Each event stands after its
length; all of it is packed with zlib.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import StreamOutOfStep
from penstock.model.change import DELETE, INSERT, TRUNCATE, UPDATE
from penstock.model.table import TableId, TableSchema
from penstock.source.mysql.events import Block
from penstock.source.mysql.gtids import GtidSet, LastOfSources, owned
from penstock.source.mysql.transactions import Transactions

RECORDED = Path(__file__).parents[1] / "support" / "mysql_8_0_binlog.bin"
CHARSETS = {255: "utf8mb4", 63: "binary"}
FILE, BEGIN = "binlog.000024", 24 << 32 | 197
OPS = {INSERT: 33, UPDATE: 3 + 1 + 29, DELETE: 1, TRUNCATE: 1}


class Everything:
    def wants(self, table: TableId) -> bool:
        return True

    def described(self, table: TableId) -> TableSchema | None:
        return None

    def altered(self, table: TableId) -> TableSchema | None:
        return None

    def all_wanted(self) -> list[TableSchema]:
        return []


def recorded() -> list[bytes]:
    content, at, found = zlib.decompress(RECORDED.read_bytes()), 0, list[bytes]()
    while at < len(content):
        (size,) = struct.unpack_from("<I", content, at)
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def transactions() -> Transactions:
    return Transactions(Everything(), CHARSETS, mariadb=False, file=FILE, end=BEGIN, gtids={})


def taken(into: Transactions, events: list[bytes], *, at_once: bool) -> list[tuple[object, ...]]:
    """Return the records, with their bytes. `at_once`: simple transactions are taken as capture takes them."""
    packets = [b"\0\0\0\0\0" + event for event in events]
    starts = [sum(map(len, packets[:number])) + 5 for number in range(len(packets))]
    block, at = Block(b"".join(packets), starts), 0
    while at < len(block):
        at += into.take_simple(block, at) if at_once else 0
        for number in range(at, min(at + 7, len(block))):
            for event in into.unpacked(block.event(number)):
                into.take(event)
        at += 7
    return [row for one in into.take_closed() for row in zip(*one.batch.to_pydict().values(), strict=True)]


def test_transactions_are_whole_and_know_their_place_and_gtids(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one, at_once = transactions(), transactions()
    rows = taken(one_by_one, recorded(), at_once=False)
    assert Counter(row[5] for row in rows) == OPS
    monkeypatch.setattr("penstock.source.mysql.transactions._WORTH_A_LOOK", 5)
    assert taken(at_once, recorded(), at_once=True) == rows
    places = [(row[0], row[1]) for row in rows]
    assert places == sorted(set(places))
    (numbers,) = one_by_one.gtids.values()
    low, high = map(int, numbers.split("-"))
    assert high - low + 1 == len({row[0] for row in rows}) + 1  # CREATE TABLE has no record here
    for one in (one_by_one, at_once):
        assert (one.gtids, one.end, one.file) == (one_by_one.gtids, one_by_one.end, FILE)


def test_a_bit_that_was_altered_is_found_however_the_event_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.source.mysql.transactions._WORTH_A_LOOK", 5)
    events = recorded()
    for number, event in enumerate(events):
        if event[4] in (30, 31, 32, 33, 40):  # rows, GTIDs, and a compressed transaction
            for place in (20, len(event) // 2, len(event) - 1):
                wrong = bytearray(event)
                wrong[place] ^= 0x10
                with pytest.raises(StreamOutOfStep, match="fails its checksum"):
                    taken(transactions(), [*events[:number], bytes(wrong), *events[number + 1 :]], at_once=True)


def test_gtid_sets() -> None:
    server, other = "5ab52a82-e39a-11f1-b84f-02fc00000001", "00000000-0000-0000-0000-000000000002"
    found = GtidSet.from_text(f"{server.upper()}:1-3:7,\n{other}:5")
    assert found.state() == {server: "1-3:7", other: "5"}
    assert GtidSet(found.state()).text() == found.text()
    for number in (4, 6, 8, 9):
        found.add(f"{server}:{number}")
    assert found.state()[server] == "1-4:6-9"
    found.add_runs([f"{server}:5-5", f"{server}:20-30", f"{other}:1-4"])
    assert found.state() == {server: "1-9:20-30", other: "1-5"}
    assert f"{server}:25" in found
    assert f"{server}:10" not in found
    assert found.encoded()[:8] == struct.pack("<Q", 2)
    assert len(found.encoded()) == 8 + 2 * (16 + 8) + 3 * 16
    held = owned(f"{server}:10#25#26:19#3,{other}:9#1")
    assert held.state() == {server: "10:19", other: "9"}
    assert not held.meets(found)
    assert held.meets(GtidSet({other: "1-9"}))
    assert not owned("")
    written = LastOfSources("0-1-41,0-2-44,\n7-1-3")
    assert "0-1-41" in written
    assert not any(one in written for one in ("0-1-42", "0-3-1", "7-2-1"))

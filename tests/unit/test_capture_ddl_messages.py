"""Logical messages are anybody's: only what the DDL trigger signed is believed, and nothing ends capture."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.source.postgres import ddl_messages
from penstock.source.postgres.ddl_messages import MOST_BYTES, DdlMessages, signature_of
from penstock.source.postgres.pgoutput import read_logical_message
from penstock.source.postgres.relation_schema import ToldColumn, ToldStructure

SECRET, XID = b"s" * 32, 4711
TOLD = {"xid": XID, "relation": 16385, "storage": 5, "stamps": ["1:700", "2:701"], "columns": [[1, "id", 23, -1]]}


class Schemas:
    """What RelationSchemas is told."""

    def __init__(self) -> None:
        self.structures: list[ToldStructure] = []

    def told(self, structure: ToldStructure) -> None:
        self.structures.append(structure)


class Reading:
    """DdlMessages over a source with this secret, and what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, secret: bytes | None = SECRET) -> None:
        self.secret, self.reads, self.clock = secret, 0, 100.0
        self.schemas, self.reports = Schemas(), list[dict[str, object]]()
        monkeypatch.setattr(ddl_messages, "read_secret", self._read)
        monkeypatch.setattr(ddl_messages, "time", SimpleNamespace(monotonic=lambda: self.clock))
        self._messages = DdlMessages(None, self.schemas, self.reports.append)  # type: ignore[arg-type]

    def _read(self, _: object) -> bytes | None:
        self.reads += 1
        return self.secret

    def take(self, content: bytes, prefix: bytes = b"penstock", flags: int = 1, xid: int | None = XID) -> int:
        """How many structures are believed after it."""
        self._messages.take(logical(content, prefix, flags), xid)
        return len(self.schemas.structures)


def logical(content: bytes, prefix: bytes = b"penstock", flags: int = 1) -> bytes:
    return struct.pack(">cBQ", b"M", flags, 99) + prefix + b"\0" + struct.pack(">I", len(content)) + content


def signed(told: Any, secret: bytes = SECRET) -> bytes:
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return signature_of(secret, text) + text


def test_what_the_trigger_signed_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch)
    assert reading.take(b"") == 0  # stands behind the others
    assert reading.take(signed(TOLD)) == 1
    (found,) = reading.schemas.structures
    assert (found.relation_id, found.numbered, found.storage) == (16385, 2, 5)
    assert found.columns == (ToldColumn(1, "id", 23, -1),)
    assert reading.reports == []


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(TOLD).encode(),
        signed(TOLD, b"another secret"),
        signed({**TOLD, "xid": XID + 1}),  # of another transaction: used again
        signed(TOLD)[:-1],
        signed(TOLD)[:64],
        signed(b"[]"),
        signed(b"12"),
        signed(b'{"relation": 1}'),
        signed({**TOLD, "columns": [1, 2]}),
        signed({**TOLD, "columns": {"a": 1}, "stamps": 5}),
        signed({**TOLD, "relation": "many"}),
        signed(b"[" * 100_000),
        signed(b"\xff\xfe\x00"),
        b"\xff" * 200,
        b"0" * (MOST_BYTES + 1),
        b"x",
    ],
    ids=range(16),
)
def test_anything_else_is_ignored_and_counted(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    reading = Reading(monkeypatch)
    assert reading.take(content) == 0
    assert reading.reports[0]["messages"] == 1


def test_messages_of_others_are_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch)
    for prefix in (b"", b"p", b"penstock2", b"\xff\xfe", b"app"):
        assert reading.take(signed(TOLD), prefix) == 0
    assert (reading.reports, reading.reads) == ([], 0)
    assert reading.take(signed(TOLD), flags=0) == 0  # not part of a transaction
    assert reading.take(signed(TOLD), xid=None) == 0
    assert read_logical_message(b"M", b"penstock") is None


def test_many_messages_are_reported_once_a_minute_and_cost_few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch)
    for _ in range(240):
        reading.take(b"forged")
        reading.clock += 0.5
    assert [report["messages"] for report in reading.reports] == [1, 121]
    assert reading.reads == 12


def test_a_secret_that_was_made_again_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, None)
    assert reading.take(signed(TOLD)) == 0
    assert reading.reports == [{"event": "ignored", "messages": 1, "trusted": False}]
    reading.secret = SECRET
    reading.clock += ddl_messages.READ_AGAIN_SECONDS
    assert reading.take(signed(TOLD)) == 1

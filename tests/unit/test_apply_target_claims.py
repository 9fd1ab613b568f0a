"""Which feeds may share a table: those of different sources, with different sids, in one mode."""

from __future__ import annotations

from penstock.model.feed import Feed, Mode, Sid
from penstock.model.table import TableId
from penstock.runtime.apply.target_claims import TargetClaims

TARGET = TableId("crm", "customers")


def feed(sid: str | None, table: str = "customers", mode: Mode = Mode.CLONE) -> Feed:
    name = TableId("public", table)
    return Feed(name, name, TARGET, mode, sid=None if sid is None else Sid("sid", sid, "crm"))


def test_sources_with_sids_of_their_own_share_a_table() -> None:
    owners = TargetClaims()
    assert owners.claim("eu", feed("eu")) is None
    assert owners.claim("us", feed("us")) is None
    assert owners.claim("eu", feed("eu")) is None, "again, after an error"


def test_two_sources_without_sids_do_not() -> None:
    owners = TargetClaims()
    assert owners.claim("eu", feed(None)) is None
    found = owners.claim("us", feed(None))
    assert found is not None
    assert found.source == "eu"


def test_nor_does_one_with_a_sid_and_one_without() -> None:
    owners = TargetClaims()
    assert owners.claim("eu", feed("eu")) is None
    assert owners.claim("us", feed(None)) is not None


def test_nor_do_two_tables_of_one_source_or_two_modes() -> None:
    owners = TargetClaims()
    assert owners.claim("eu", feed("eu")) is None
    found = owners.claim("eu", feed("eu", "clients"))
    assert str(found) == "eu:public.customers"
    assert owners.claim("us", feed("us", mode=Mode.APPEND)) is not None

"""Endpoints for messages, LSNs as text, and passwords that stay out of sight. Nothing connects here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SourceMisconfigured
from penstock.source.postgres.connect import endpoint, without_password
from penstock.source.postgres.slot import lsn_text, parse_lsn


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://app:x@db:5433/shop", "db:5433/shop"),
        ("postgresql://app@db/shop?sslmode=require", "db:5432/shop"),
        ("postgresql://app@a:1,b:2/shop", "a:1,b:2/shop"),
        ("postgresql://app@db", "db:5432/app"),
    ],
)
def test_endpoint(url: str, expected: str) -> None:
    assert endpoint(url) == expected


def test_a_url_that_cannot_be_parsed_is_not_quoted() -> None:
    with pytest.raises(SourceMisconfigured) as caught:
        endpoint("postgresql://app:hunter2%zz@db/shop")
    assert "hunter2" not in str(caught.value)


def test_every_form_of_the_password_is_removed() -> None:
    url = "postgresql://app:p%40ss%2Fword@db/shop"
    assert without_password("p@ss/word or p%40ss%2Fword or p%40ss/word", url) == "*** or *** or ***"


def test_lsn_as_the_server_writes_it() -> None:
    assert parse_lsn("16/B374D848") == 0x16_B374D848
    assert lsn_text(0x16_B374D848) == "16/B374D848"
    assert lsn_text(0) == "0/0"


@given(st.integers(0, 2**64 - 1))
def test_lsn_text_is_read_back(position: int) -> None:
    assert parse_lsn(lsn_text(position)) == position

"""Positions as Postgres writes them, wherever people see or give one."""

from __future__ import annotations

import pytest

from penstock.control.query.events import parse_place
from penstock.errors import UsageError
from penstock.model.position import LAST, order_text, parse_order, parse_position, position_text, stored_text


@pytest.mark.parametrize("position", [0, 0x16A4F88, 0x16_B374D848, 2**64 - 1])
def test_both_texts_are_read_back(position: int) -> None:
    assert parse_position(position_text(position)) == parse_position(stored_text(position)) == position


def test_texts() -> None:
    assert position_text(0x16A4F88) == "0/16A4F88"
    assert order_text(0x16B3740, 2) == "0/16B3740:2"
    assert parse_order("0/16B3740:2") == (0x16B3740, 2)
    assert parse_order(order_text(0x16B3740, -1)) == (0x16B3740, -1), "the begin of a transaction"
    assert parse_order("00000000016b3740/0000000000000002") == (0x16B3740, 2), "as earlier versions wrote it"


def test_a_position_alone_stands_for_the_end_of_its_transaction() -> None:
    assert parse_place("0/16A4F88") == (0x16A4F88, LAST)


@pytest.mark.parametrize("text", ["12", "", "0/", "0/1:", "0/1:x", "yesterday", "123456789/0"])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(UsageError, match=r"0/16B3740"):
        parse_place(text)

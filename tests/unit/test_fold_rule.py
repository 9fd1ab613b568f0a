"""What a rule's text tells of its changes, and what the runtime makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.fold.rule import changes, newly_hidden, retyped, rule_text
from penstock.model.feed import ColumnChoice, Feed, Mode, Projection
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.runtime.watch.rule_changes import compared, hidden_remark, refusal

FEED = replace(
    Feed.clone(TableId("public", "people")),
    projection=Projection("age > 1", (ColumnChoice("mail", masked=True),), (("tier", 1),), "pepper"),
)


def told(**changed: object) -> list[str]:
    after = replace(FEED, projection=replace(FEED.projection, **changed))  # type: ignore[arg-type]
    return changes(rule_text(FEED), rule_text(after))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"where": "age > 2"}, ["`where` changed from (age > 1) to (age > 2)"]),
        ({"where": ""}, ["`where` changed from (age > 1) to nothing"]),
        ({"columns": ()}, ["column mail was masked and is now kept"]),
        ({"columns": (ColumnChoice("mail", dropped=True),)}, ["column mail was masked and is now dropped"]),
        (
            {"columns": (ColumnChoice("mail", masked=True), ColumnChoice("name", name="full"))},
            ["column name was kept and is now renamed to full"],
        ),
        ({"constants": (("tier", 2),)}, ["`set` changed tier from 1 to 2"]),
        ({"constants": (("tier", True),)}, ["`set` changed tier from 1 to True"]),
        ({"constants": ()}, ["`set` no longer has tier"]),
        ({"constants": (("tier", 1), ("zone", "x"))}, ["`set` has zone now"]),
        ({"salt": "salt"}, ["`mask_salt` changed"]),
    ],
)
def test_what_changed(changed: dict[str, object], said: list[str]) -> None:
    assert told(**changed) == said


def test_the_salt_is_not_in_the_text() -> None:
    assert "pepper" not in rule_text(FEED)


def test_columns_that_nobody_is_to_read_any_more() -> None:
    plain = rule_text(replace(FEED, projection=Projection()))
    assert newly_hidden(plain, rule_text(FEED)) == ["mail"]
    assert newly_hidden(rule_text(FEED), plain) == []
    remark = hidden_remark(FEED, "lake", ["mail"])
    assert "in its older snapshots until they expire" in remark
    assert "CALL lake.system.expire_snapshots(table => 'public.people'" in remark


def test_a_type_that_the_file_chooses() -> None:
    def schema(carried_as: str) -> TableSchema:
        column = Column("wage", ColumnType(1700, "numeric", carried_as=carried_as), number=2)
        return TableSchema(TableId("public", "people"), 1, (column,), ())

    assert retyped(schema(""), schema("text")) == ["`types` changed for column wage, from its default type to text"]
    assert retyped(schema("text"), schema("text")) == []


@pytest.mark.parametrize(
    ("before", "after", "where", "loses"),
    [
        (Mode.CLONE, Mode.CLONE, "", None),
        (Mode.CLONE, Mode.CLONE, "x > 1", False),
        (Mode.APPEND, Mode.APPEND, "x > 1", True),
        (Mode.HISTORY, Mode.HISTORY, "x > 1", True),
        (Mode.EVENTS, Mode.EVENTS, "x > 1", True),
        (Mode.CLONE, Mode.APPEND, "", False),
        (Mode.CLONE, Mode.APPEND, "x > 1", True),
        (Mode.APPEND, Mode.CLONE, "", True),
    ],
)
def test_what_a_change_means(before: Mode, after: Mode, where: str, loses: bool | None) -> None:
    was = rule_text(replace(FEED, mode=before, projection=Projection()))
    feed = replace(FEED, mode=after, projection=Projection(where))
    change = compared(feed, was, rule_text(feed), [])
    assert (None if change is None else change.loses) == loses
    if change is not None and change.loses:
        assert "penstock drop shop.yaml public.people --yes" in refusal(feed, Path("shop.yaml"), change).solution


def test_a_table_that_says_no_rule_is_believed_but_for_its_types() -> None:
    assert compared(FEED, None, rule_text(FEED), []) is None
    change = compared(FEED, None, rule_text(FEED), ["`types` changed"])
    assert change is not None
    assert not change.loses

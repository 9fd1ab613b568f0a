"""What `verify --repair` leaves alone and says why, and how a table that could not be read is shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.control.verify import verification
from penstock.control.verify.compare import Comparison, Difference
from penstock.control.verify.verification import Verified, not_repairable
from penstock.control.verify.view import as_json, as_text
from penstock.errors import TableError
from penstock.model.scoped_name import ScopedName
from penstock.model.table import Column, ColumnType, TableId, TableSchema

ID = Column("id", ColumnType(23, "int4"))
KEYED = TableSchema(TableId("public", "t"), 1, (ID,), ("id",))
NAMED = ScopedName("eu", TableId("public", "t"))
PLAIN = ScopedName(None, TableId("public", "t"))
KEYLESS = TableSchema(TableId("public", "t"), 1, (ID,), ())


def different(*kinds: str, complete: bool = True) -> Comparison:
    found = [Difference(kind, str(n), (str(n),)) for n, kind in enumerate(kinds)]  # type: ignore[arg-type]
    return Comparison(1, 1, 1, 1, found, complete)


def test_differing_rows_of_a_table_with_a_key_are_repaired() -> None:
    assert not_repairable(KEYED, different("missing", "extra", "differs", "doubled"), PLAIN) is None
    assert not_repairable(KEYED, different("missing", "differs"), PLAIN, keeps_partitions=True) is None


@pytest.mark.parametrize(
    ("schema", "comparison", "keeps", "said"),
    [
        (KEYLESS, different("missing"), False, "has no key"),
        (KEYED, different("missing", complete=False), False, "too many"),
        (KEYED, different("missing", "extra"), True, "detached or dropped"),
    ],
)
def test_others_are_left_alone(schema: TableSchema, comparison: Comparison, keeps: bool, said: str) -> None:
    error = not_repairable(schema, comparison, NAMED, keeps_partitions=keeps)
    assert error is not None
    assert said in error.what
    assert "resync FILE eu:public.t" in error.solution


def test_more_than_the_most_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MOST_DIFFERENCES", 2)
    assert not_repairable(KEYED, different("missing", "missing"), NAMED) is None
    assert not_repairable(KEYED, different("missing", "missing", "missing"), NAMED) is not None


def test_a_table_that_cannot_be_read_is_shown_as_not_compared_beside_the_others() -> None:
    lost = TableError("table public.t cannot be read in the lake", "penstock resync FILE public.t copies it again")
    other = ScopedName(None, TableId("public", "other"))
    found = [Verified(PLAIN, 7, error=lost), Verified(other, 7, Comparison(1, 1, 1))]
    console = Console(width=200, file=io.StringIO())
    console.print(as_text(found, 5))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "NOT COMPARED" in said
    assert "equal" in said
    assert str(lost) in said
    told = as_json(found, 5)
    assert [(one["table"], one["equal"]) for one in told["tables"]] == [("public.t", False), ("public.other", True)]
    assert told["tables"][0]["solution"] == lost.solution

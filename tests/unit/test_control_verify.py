"""What `verify --repair` leaves alone, and says why."""

from __future__ import annotations

import pytest

from penstock.control.verify import verification
from penstock.control.verify.compare import Comparison, Difference
from penstock.control.verify.verification import not_repairable
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

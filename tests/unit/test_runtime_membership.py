"""What a start makes of a table by what the state store says of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.model.table_state import State, TableStatus
from penstock.runtime.membership import is_copying

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (TableStatus(State.INIT, NOW), True),
        (TableStatus(State.CATCHUP, NOW), True),
        (TableStatus(State.ERRORED, NOW, "it was rewritten", "Nothing", "at once"), True),
        (TableStatus(State.ERRORED, NOW, "no answer", "Wait", "in 20 s (try 2 of 5)"), True),
        (TableStatus(State.ERRORED, NOW, "no key", "Give it one", "manual"), False),
        (TableStatus(State.SYNC_DONE, NOW), False),
        (TableStatus(State.READY, NOW), False),
    ],
)
def test_a_copy_was_on_its_way_also_between_two_tries(status: TableStatus, expected: bool) -> None:
    assert is_copying(status) is expected

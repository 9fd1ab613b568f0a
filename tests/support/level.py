"""Wait until a run has brought everything that the source has now to its destinations."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.table_state import State
from penstock.state.sql import find_store
from running import PipelineFile, Running, await_condition


def level(
    run: Running,
    file: PipelineFile,
    destinations: Sequence[str],
    *,
    errored: Sequence[str] = (),
    tables: Sequence[str] = (),
    seconds: float = 180,
) -> None:
    """`errored`: tables that must be Errored; all others are Ready. `tables`: those that must be there."""
    wanted = file.database.flush_position()
    store = find_store(file.state)
    assert store is not None

    def there() -> bool:
        assert run.process.poll() is None, run.tail()
        for name in destinations:
            found = {str(table): one.state for table, one in store.table_status(name).items()}
            for table in {*found, *tables}:
                if found.get(table) is not (State.ERRORED if table in errored else State.READY):
                    return False
        return all((store.processed(name) or 0) >= wanted for name in destinations)

    try:
        await_condition(there, f"{', '.join(destinations)} to be level", seconds)
    except AssertionError as late:
        others = [
            f"{name}: {table} is {one.state.name} {one.reason}"
            for name in destinations
            for table, one in store.table_status(name).items()
            if one.state is not State.READY
        ]
        raise AssertionError(f"{late}; {others}\n{run.tail()}") from None
    finally:
        store.close()

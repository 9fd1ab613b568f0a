"""The table of modes (mode_cases.py) through the whole pipeline: every case a table, every table in every mode."""

from __future__ import annotations

from typing import Any

from databases import Database
from lake import Lake
from mode_cases import CASES, EVENTS, STORAGE, TABLE, Rows, ranked, told, value
from running import PipelineFactory, PipelineFile, Running, await_condition, running

MODES = ["append", "history", "events"]
CHOSEN = ("delete", "truncate", "key change", "insert, delete, insert", "values that are not sent")


def tables() -> dict[str, int]:
    return {f"case_{number}": number for number, case in enumerate(CASES) if case.name in CHOSEN}


def target(table: str, mode: str) -> str:
    return f"public.{table}" if mode == MODES[0] else f"public.{table}__{mode}"


def await_ready(file: PipelineFile) -> None:
    def ready() -> bool:
        states = [table["state"] for table in file.status()["tables"]]
        return states == ["Ready"] * len(tables()) * len(MODES)

    await_condition(ready, "every table to be copied", 120, every=0.5)


def found(lake: Lake, target: str, *, versions: bool) -> Rows:
    rows = [tuple(row.values()) for row in lake.read(target)[0].to_pylist()]
    if not versions:
        return sorted(rows, key=repr)

    def moment(at: Any) -> Any:
        return None if at.year in (1900, 9999) else at

    return ranked([(*row[:3], moment(row[3]), moment(row[4]), row[5]) for row in rows])


def assert_all(lake: Lake) -> None:
    for table, number in tables().items():
        case = CASES[number]
        for mode in MODES[:2]:
            wanted = [value(row) for row in getattr(case, mode)]
            wanted = ranked(wanted) if mode == "history" else sorted(wanted, key=repr)
            assert found(lake, target(table, mode), versions=mode == "history") == wanted, f"{case.name}: {mode}"


def assert_events(lake: Lake) -> None:
    for table, number in tables().items():
        events = lake.read(target(table, "events"))[0].to_pylist()
        events.sort(key=lambda event: (event["commit_lsn"], event["tx_ordinal"]))
        assert [told(event) for event in events] == EVENTS[CASES[number].name], CASES[number].name


def test_every_case_in_every_mode(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    for table, number in tables().items():
        statements = (TABLE, STORAGE, *CASES[number].copied)
        postgres.execute(*(statement.format(t=table) for statement in statements))
    file = pipeline(tables=[{"match": "public.case_%", "mode": MODES}])
    rounds = max(len(CASES[number].transactions) for number in tables().values())
    with running(file) as run:
        await_ready(file)
        for turn in range(rounds):
            for table, number in tables().items():
                if turn < len(CASES[number].transactions):
                    with postgres.connect() as connection, connection.transaction():
                        for statement in CASES[number].transactions[turn]:
                            connection.execute(statement.format(t=table).encode())
            if turn == 0:
                run.drain()
                file.arm("apply.after_commit", 3)  # some tables of the batch are committed, others are not
            if turn == 1:
                run.await_killed()
                again = Running(file)
                again.await_streaming()
        try:
            again.drain()
            assert_all(lake)
            assert_events(lake)
            current = file.command(
                "query", str(file.path), "select id, word from public.case_5__history__current order by id"
            )
            assert [line.split() for line in current.stdout.splitlines()[-2:]] == [["1", "b"], ["9", "a"]], current
            names = [target(table, mode) for table in tables() for mode in MODES[:2]]
            assert file.command("resync", str(file.path), *names).returncode == 0
            again.await_text("asked for", 60)
            await_ready(file)
            assert_all(lake)
            again.stop()
        finally:
            again.clean_up()

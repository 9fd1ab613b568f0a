"""The table of modes (mode_cases.py) through the whole pipeline: every case in every mode, with two kills that fall
into every one of them.

Cases share two tables, so that one run has them all: each case is a view of the rows with its number. A truncate
leaves nothing of anybody's, so its case has the second table for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from databases import Database
from lake import Lake
from mode_cases import CASES, STORAGE, told, wanted
from running import PipelineFactory, PipelineFile, Running, await_condition, running

MODES = ("clone", "append", "history", "events")
TABLES = ("cases", "truncated")
TABLE = (
    "create table {t} (id int, word text, large text, number int default current_setting('modes.number')::int,"
    " primary key (id, number))"
)
TRUNCATE = next(number for number, case in enumerate(CASES) if case.name == "truncate")
KEY_CHANGE = next(number for number, case in enumerate(CASES) if case.name == "key change")


def table_of(number: int) -> str:
    return "truncated" if number == TRUNCATE else "cases"


def target(table: str, mode: str) -> str:
    return f"public.{table}" if mode == MODES[0] else f"public.{table}__{mode}"


TARGETS = [target(table, mode) for table in TABLES for mode in MODES]


def prepare(postgres: Database) -> None:
    postgres.execute(*(statement.format(t=table) for table in TABLES for statement in (TABLE, STORAGE)))
    for number, case in enumerate(CASES):
        if number != TRUNCATE:
            view = "create view case_{n} as select id, word, large from cases where number = {n}"
            postgres.execute(view.format(n=number))
        transact(postgres, number, case.copied)


def transact(postgres: Database, number: int, statements: tuple[str, ...]) -> None:
    name = "truncated" if number == TRUNCATE else f"case_{number}"
    with postgres.connect() as connection, connection.transaction():
        connection.execute(f"set local modes.number = {number}".encode())
        for statement in statements:
            connection.execute(statement.format(t=name).encode())


def take_turn(postgres: Database, turn: int) -> None:
    """The transaction with that number of every case that has so many."""
    for number, case in enumerate(CASES):
        if turn < len(case.transactions):
            transact(postgres, number, case.transactions[turn])


def await_ready(file: PipelineFile) -> None:
    def ready() -> bool:
        return [table["state"] for table in file.status()["tables"]] == ["Ready"] * len(TARGETS)

    await_condition(ready, "every table to be copied", 120, every=0.5)


def assert_all(lake: Lake, modes: tuple[str, ...] = MODES) -> None:
    for mode in modes:
        held = {table: list(by_number(mode, lake.read(target(table, mode))[0].to_pylist())) for table in TABLES}
        for number, case in enumerate(CASES):
            rows = [row for its, row in held[table_of(number)] if its in (number, None)]
            assert told(mode, rows) == wanted(mode, case), f"{case.name}: {mode}"


def by_number(mode: str, rows: list[dict[str, Any]]) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Rows with the case that each belongs to, and without its number; a truncate has none."""
    for row in rows:
        images = [row["before"], row["after"]] if mode == "events" else [row]
        numbers = [image.pop("number") for image in images if image is not None]
        yield (numbers[0] if numbers else None), row


def assert_asked(file: PipelineFile) -> None:
    """What a person asks a history: how things are, and how they were at a moment."""
    past = "timestamp '1950-01-01'"
    asked = file.command(
        "query",
        "FILE",
        f"select 'now', id, word from public.cases__history__current where number = {KEY_CHANGE} union all"
        f" select 'then', id, word from public.cases__history where number = {KEY_CHANGE}"
        f" and valid_from <= {past} and {past} < valid_to order by 1, 2",
        "--format",
        "csv",
    )
    answer = ['"now",1,"b"', '"now",9,"a"', '"then",1,"a"', '"then",2,"b"', '"then",9,"a"']
    assert asked.stdout.splitlines()[1:] == answer, asked


@contextmanager
def killed_at(file: PipelineFile, failpoint: str, nth: int = 1) -> Iterator[None]:
    """The run that is under way, or starts now, dies there."""
    file.arm(failpoint, nth)
    yield
    await_condition(file.fired, f"the death at {failpoint}", 120)


def test_every_case_in_every_mode(pipeline: PipelineFactory, postgres: Database, lake: Lake) -> None:
    """The first transaction of every case is killed twice: written and not committed for any table, then committed for
    all of them in one step. So each mode meets its batch again, and each goes on from where the kill left it."""
    prepare(postgres)
    file = pipeline(tables=[{"match": "public.*", "mode": list(MODES)}], batch={"max_age": "500ms"})
    with running(file) as first:
        await_ready(file)
        with killed_at(file, "apply.files_written"):
            take_turn(postgres, 0)
        first.await_killed()
    with killed_at(file, "apply.after_commit"):
        second = Running(file)
    second.await_killed()
    positions = [lake.properties(name)[f"penstock.position.{file.name}"] for name in TARGETS]
    assert len(set(positions)) == 1, "all tables have the batch, or none has it"
    with running(file) as run:
        run.drain()
        for turn in range(1, max(len(case.transactions) for case in CASES)):
            take_turn(postgres, turn)
        run.drain()
        assert_all(lake)
        assert_asked(file)
        assert file.command("resync", "FILE", *(name for name in TARGETS if "events" not in name)).returncode == 0
        run.await_text("request taken up", 60)
        await_ready(file)
        assert_all(lake, MODES[:3])

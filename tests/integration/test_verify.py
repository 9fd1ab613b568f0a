"""`penstock verify` from outside: what somebody planted in the lake is found, named and repaired, under traffic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from py4j.protocol import Py4JJavaError

from databases import Database
from lake import WORK_TABLES, Lake
from running import PipelineFactory, PipelineFile, await_condition, running
from workload import Workload, create_tables

BIG = """
    create table big (id int primary key, name text, amount numeric(12, 2), at timestamptz, ratio float8, note text)
"""
FILLED = """
    insert into big select n, 'name ' || n, n / 7.0, timestamptz '2024-01-01' + n * interval '1 second', sqrt(n),
        case when n % 3 = 0 then null else repeat('x', n % 40) end
    from generate_series(1, {rows}) n
"""


def verify(file: PipelineFile, *options: str, seconds: float = 300.0) -> tuple[int, dict[str, Any]]:
    done = file.command("verify", "FILE", "--json", *options, seconds=seconds)
    assert done.stdout, done.stderr[-4000:]
    return done.returncode, json.loads(done.stdout)


def planted(lake: Lake, statement: str) -> None:
    """A foreign writer may lose a race against ours, and then tries again, as any writer does."""

    def written() -> bool:
        try:
            lake.sql(statement)
        except Py4JJavaError as lost:
            if "ValidationException" not in str(lost):
                raise
            return False
        return True

    await_condition(written, statement, 60)


@contextmanager
def traffic(database: Database, *statements: str) -> Iterator[None]:
    """These statements again and again, as long as the block lasts."""
    stop = Event()

    def work() -> None:
        while not stop.wait(0.01):
            database.execute(*statements)

    busy = Thread(target=work)
    busy.start()
    try:
        yield
    finally:
        stop.set()
        busy.join()


def test_what_was_planted_is_found_and_repaired_while_everything_goes_on(
    pipeline: PipelineFactory, postgres: Database, lake: Lake, full: bool
) -> None:
    rows = 2_000_000 if full else 50_000
    postgres.execute(
        BIG,
        FILLED.format(rows=rows),
        "create table busy (a int, b text, n int, primary key (a, b))",
        "insert into busy select n, 'x', 0 from generate_series(1, 1000) n",
        "create table heap (n int, t text)",
        "insert into heap select n % 10, 'twice' from generate_series(1, 20) n",
    )
    file = pipeline()
    changes = (
        "update busy set n = n + 1 where a <= 50",
        f"update big set note = 'busy' where id % {rows // 20} = 7",
        "insert into heap values (1, 'once more')",
    )
    with running(file) as run:
        run.drain()
        with traffic(postgres, *changes):
            code, said = verify(file)
        assert (code, said["equal"]) == (0, True), said
        assert [table["table"] for table in said["tables"]] == ["public.big", "public.busy", "public.heap"]
        assert said["tables"][0]["source_rows"] == rows

        run.drain()
        for statement in (
            "update lake.public.big set name = 'forged' where id = 1001",
            "delete from lake.public.big where id = 1002",
            f"insert into lake.public.big select {rows + 5}, 'nobody', 1, null, 1, null",
            "insert into lake.public.big select * from lake.public.big where id = 1003",
            "insert into lake.public.heap values (77, 'nobody')",
        ):
            planted(lake, statement)
        with traffic(postgres, *changes):
            code, said = verify(file, "--repair")
            assert code == 1, "a table without a key is not repaired"
            big, busy, heap = said["tables"]
            named = {row["key"][0]: row for row in big["differing"]["rows"]}
            assert {key: row["kind"] for key, row in named.items()} == {
                "1001": "differs",
                "1002": "missing",
                "1003": "doubled",
                str(rows + 5): "extra",
            }
            assert named["1001"]["cells"] == [{"column": "name", "source": "name 1001", "lake": "forged"}]
            assert [(row["kind"], row["times"]) for row in heap["differing"]["rows"]] == [("extra", 1)]
            assert "resync" in heap["solution"]
            assert (big["equal"], big["repaired"], busy["equal"]) == (True, True, True), said
        run.drain()
        lake.assert_equals(postgres, ["public.big", "public.busy"])


def test_without_a_run_every_type_and_key_is_compared_under_the_publications_filter(
    pipeline: PipelineFactory, postgres: Database, lake: Lake
) -> None:
    create_tables(postgres.url)
    postgres.execute(
        "create table part (id int, name text, secret text, primary key (id))",
        "insert into part select n, 'n' || n, 's' from generate_series(1, 100) n",
    )
    file = pipeline()
    names = ", ".join([*WORK_TABLES, "part (id, name) where (id > 10)"])
    via_root = "with (publish_via_partition_root = true)"
    postgres.execute(f"create publication penstock_{file.name} for table {names} {via_root}")
    with Workload(postgres.url, seed=5, connections=1) as workload:
        workload.take_turns(30)
        file.run_once()
        workload.take_turns(20)
        postgres.execute("update part set name = 'changed' where id % 9 = 0")
    code, said = verify(file)
    assert (code, said["equal"]) == (0, True), [table for table in said["tables"] if not table["equal"]]
    assert len(said["tables"]) == len(WORK_TABLES) + 1
    (part,) = [table for table in said["tables"] if table["table"] == "public.part"]
    assert (part["source_rows"], part["lake_rows"]) == (90, 90)

    lake.sql("update lake.public.part set name = null where id = 50")
    lake.sql("insert into lake.public.part values (5, 'filtered out')")
    done = file.command("verify", "FILE", "public.part", "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(5) extra in the lake" in done.stdout
    assert "(50) differs: name: source 'n50', lake NULL" in done.stdout
    assert "equal after the repair" in done.stdout
    assert lake.count("public.part") == 90

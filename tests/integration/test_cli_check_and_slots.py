"""`penstock check` and `penstock slots drop` as a user sees them: what is printed where, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from databases import Database
from penstock.cli.main import main
from penstock.source.postgres.connect import connect, replication_connection
from penstock.source.postgres.slot import create_slot, slot_state

SECRET = "hunter2-secret"


def pipeline_file(folder: Path, database: Database, tables: str = "[{match: public.*}]", url: str = "") -> str:
    file = folder / "pipeline.yaml"
    file.write_text(
        f"version: 1\nname: {database.name}\nsource: {{type: postgres, url: '{url or database.url}'}}\n"
        f"tables: {tables}\ndestinations: [{{type: iceberg, warehouse: ./warehouse}}]\n"
    )
    return str(file)


def test_check_of_a_pipeline_that_can_run(
    postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    assert main(["check", pipeline_file(tmp_path, postgres)]) == 0
    printed = capsys.readouterr()
    assert "1 table to follow" in printed.out
    assert "table public.orders has rows from before the slot: `penstock run` copies them" in printed.out
    assert printed.out.endswith("ready to run\n")
    assert printed.err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.yaml"]


def test_check_prints_each_finding_with_its_fix_and_exits_1(
    postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.execute("CREATE TABLE keyed (id int PRIMARY KEY)", 'CREATE TABLE "[bold]x" (id int NOT NULL UNIQUE)')
    (tmp_path / "warehouse").write_text("a file where a folder should be")
    assert main(["check", pipeline_file(tmp_path, postgres)]) == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    at = next(i for i, line in enumerate(lines) if "WARNING" in line)
    assert "table public.[bold]x has no key" in lines[at]
    fix = lines[at + 1].strip().removeprefix("fix: ")
    assert f"{tmp_path}/warehouse is not a folder" in printed.out
    assert printed.err.count("\n") == 1
    assert "1 thing must be fixed" in printed.err
    postgres.execute(fix)
    (tmp_path / "warehouse").unlink()
    assert main(["check", pipeline_file(tmp_path, postgres)]) == 0


def test_check_sees_tables_that_would_share_a_target(
    postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY)")
    tables = "[{match: '%.t', target: 'lake.{table}'}]"
    assert main(["check", pipeline_file(tmp_path, postgres, tables)]) == 1
    assert "public.t and s.t would both be written to lake.t" in capsys.readouterr().out


def test_check_without_java(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["check", pipeline_file(tmp_path, postgres)]) == 1
    assert "there is no Java" in capsys.readouterr().out


def test_check_of_a_server_that_cannot_be_reached(
    postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.url.replace("postgres@", f"nobody_here:{SECRET}@")
    assert main(["check", pipeline_file(tmp_path, postgres, url=url)]) == 3
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "Name a role that exists" in printed.err
    assert SECRET not in printed.out + printed.err


def test_slots_drop_says_what_it_means_and_needs_yes(
    any_postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, name = pipeline_file(tmp_path, any_postgres), f"penstock_{any_postgres.name}"
    any_postgres.execute(f"CREATE PUBLICATION {name}")
    with connect(any_postgres.url) as connection:
        create_slot(connection, any_postgres.url, name)
        assert main(["slots", "drop", file]) == 2
        assert "the change log's end becomes a gap" in capsys.readouterr().err
        assert slot_state(connection, name) is not None

        reader = replication_connection(any_postgres.url)
        options = f"(proto_version '1', publication_names '{name}')"
        reader.send_query(f"START_REPLICATION SLOT {name} LOGICAL 0/0 {options}".encode())
        reader.get_result()
        assert main(["slots", "drop", file, "--yes"]) == 3
        assert f"is being read by process {reader.backend_pid}" in capsys.readouterr().err
        reader.finish()
        while (state := slot_state(connection, name)) is not None and state.active_pid is not None:
            connection.execute("SELECT pg_sleep(0.02)")

        assert main(["slots", "drop", file, "--yes"]) == 0
        assert "is a gap" in capsys.readouterr().out
        assert slot_state(connection, name) is None
        assert main(["slots", "drop", file, "--yes"]) == 0
        assert "nothing to drop" in capsys.readouterr().out

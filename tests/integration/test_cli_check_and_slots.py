"""`penstock check` and `penstock slots drop` as a user sees them: what is printed where, and the exit code."""

from __future__ import annotations

import re
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
    assert re.search(r"ready to run, with \d notes?\n$", printed.out)
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


def test_check_foresees_names_that_the_lake_cannot_tell_apart(
    postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.execute(
        "CREATE TABLE reserved (id int PRIMARY KEY, _pos int)",
        'CREATE TABLE cased (id int PRIMARY KEY, name text, "Name" text)',
        "CREATE TABLE renamed (id int PRIMARY KEY, _file text)",
        'CREATE TABLE "Cased" (id int PRIMARY KEY)',
    )
    rules = "[{match: public.renamed, columns: {_file: {rename: file}}}, {match: public.*}]"
    file = pipeline_file(tmp_path, postgres, rules)
    assert main(["check", file]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert 'table public.reserved: its column "_pos" has a name that Iceberg or penstock keeps for its own' in printed
    assert 'table public.cased: its columns "name" and "Name" differ only in case' in printed
    assert "_file" not in printed
    assert "public.cased and public.Cased" not in printed, "in the embedded catalog they are two"
    Path(file).write_text(
        Path(file).read_text().replace("warehouse}", "warehouse, catalog: {type: rest, uri: 'http://x'}}")
    )
    main(["check", file])
    assert "differ only in case: where the catalog ignores that" in " ".join(capsys.readouterr().out.split())


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


def test_init_writes_a_file_that_runs(
    postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.execute(
        "CREATE SCHEMA crm",
        "CREATE TABLE crm.people (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE visits (page text)",
    )
    monkeypatch.chdir(tmp_path)
    with_password = re.sub(r"://([^@/:]+)@", rf"://\1:{SECRET}@", postgres.url)
    assert main(["init", with_password, "--name", postgres.name]) == 0
    printed, written = capsys.readouterr(), (tmp_path / "pipeline.yaml").read_text()
    assert SECRET not in printed.out + printed.err + written
    assert "set SOURCE_PASSWORD in the environment" in printed.out
    assert "public.orders: 1 column, key (id): every mode fits" in written
    assert "public.visits: 1 column, no key" in written
    assert '- match: "crm.*"' in written
    assert main(["init", with_password]) == 2, "a file that is there is left alone"
    assert (tmp_path / "pipeline.yaml").read_text() == written
    monkeypatch.setenv("SOURCE_PASSWORD", SECRET)
    capsys.readouterr()
    assert main(["check", "pipeline.yaml"]) == 0
    assert "3 tables to follow" in capsys.readouterr().out
    assert main(["init", with_password, "--output", "-"]) == 0
    assert capsys.readouterr().out.startswith("# A pipeline from Postgres")
    for wrong in ("nonsense", "http://host/db", "pipeline.yaml", "postgresql://127.0.0.1:1/shop"):
        assert main(["init", wrong, "--output", "other.yaml"]) in (2, 3)
        assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "other.yaml").exists()

"""What a user sees who gets something wrong: one line that says what and what to do, the right exit code, no more."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from databases import Database
from penstock.demo.server import PostgresServer, free_port
from running import PENSTOCK, PipelineFactory, PipelineFile, Running, make_pipeline

SECRET = "hunter2-s3cret"
COMMANDS = (
    ("check", "FILE"),
    ("run", "FILE"),
    ("run", "FILE", "--once"),
    ("capture", "FILE"),
    ("status", "FILE"),
    ("query", "FILE", "select 1"),
    ("slots", "drop", "FILE", "--yes"),
)
ORDERS = "create table orders (id int primary key, note text)"


@dataclass(frozen=True)
class Outcome:
    command: tuple[str, ...]
    code: int
    output: str
    errors: str


def outcomes(pipeline: PipelineFile, *commands: tuple[str, ...]) -> list[Outcome]:
    """Runs commands side by side, for most of their time goes into starting Python."""
    started = [
        subprocess.Popen(
            [*PENSTOCK, *(str(pipeline.path) if word == "FILE" else word for word in command)],
            env=pipeline.full_environment(uuid.uuid4().hex),
            cwd=pipeline.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        found = []
        for command, process in zip(commands, started, strict=True):
            output, errors = process.communicate(timeout=180)
            found.append(Outcome(command, process.returncode, output, errors))
        return found
    finally:
        for process in started:
            process.kill()
            process.communicate()


def assert_one_line(outcome: Outcome, code: int, *wanted: str) -> None:
    """The exit code, one `penstock:` line at the end that says all of `wanted`, no traceback and no password."""
    whole = f"{' '.join(outcome.command)} ended with {outcome.code}\n{outcome.output}\n{outcome.errors}"
    assert outcome.code == code, whole
    ours = [line for line in outcome.errors.splitlines() if line.startswith("penstock: ")]
    assert len(ours) == 1, whole
    assert outcome.errors.strip().splitlines()[-1] == ours[0], whole
    for text in wanted:
        assert text in ours[0], f"not in the line: {text}\n{whole}"
    assert "Traceback" not in outcome.errors, whole
    assert SECRET not in outcome.output + outcome.errors, whole


def bad_file(folder: Path, text: str | None) -> PipelineFile:
    pipeline = PipelineFile(folder, Database("none", ""), {"name": "none"})
    if text is not None:
        pipeline.path.write_text(text)
    return pipeline


GOOD = f"""version: 1
name: shop
source:
  type: postgres
  url: postgresql://app:{SECRET}@127.0.0.1:1/shop
tables:
  - match: public.*
destinations:
  - type: iceberg
    warehouse: ./warehouse
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param(GOOD + "log: [unclosed\n", ("pipeline.yaml",), id="bad YAML"),
        pytest.param(GOOD.replace("match:", "matsch:"), ("pipeline.yaml", "matsch", "match"), id="unknown key"),
        pytest.param(
            GOOD.replace(SECRET, "${PENSTOCK_NOT_SET}"), ("pipeline.yaml", "PENSTOCK_NOT_SET"), id="unset variable"
        ),
        pytest.param(GOOD.replace("version: 1", "version: 2"), ("pipeline.yaml", "version"), id="other version"),
        pytest.param(GOOD.replace("postgresql://", "mysql://"), ("pipeline.yaml", "url"), id="not a Postgres URL"),
        pytest.param("", ("pipeline.yaml",), id="empty file"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, wanted: tuple[str, ...]) -> None:
    for outcome in outcomes(bad_file(tmp_path, text), ("check", "FILE"), ("run", "FILE")):
        assert_one_line(outcome, 2, *wanted)
    assert {path.name for path in tmp_path.iterdir()} == {"pipeline.yaml"}, "a refused file leaves nothing behind"


def test_missing_file_for_every_command(tmp_path: Path) -> None:
    for outcome in outcomes(bad_file(tmp_path, None), *COMMANDS):
        assert_one_line(outcome, 2, "pipeline.yaml")
    assert not list(tmp_path.iterdir())


def test_wrong_usage(tmp_path: Path) -> None:
    for outcome in outcomes(
        bad_file(tmp_path, GOOD), ("run",), ("chekc", "FILE"), ("run", "FILE", "--twice"), ("query", "FILE")
    ):
        assert_one_line(outcome, 2, "--help")


def test_unreachable_host(tmp_path: Path) -> None:
    port = free_port()
    pipeline = bad_file(tmp_path, GOOD.replace("127.0.0.1:1", f"127.0.0.1:{port}"))
    for outcome in outcomes(
        pipeline, ("check", "FILE"), ("run", "FILE"), ("capture", "FILE"), ("slots", "drop", "FILE", "--yes")
    ):
        assert_one_line(outcome, 3, f"127.0.0.1:{port}")
    (shown,) = outcomes(pipeline, ("status", "FILE"))
    assert shown.code == 0, "status reports what it can while the source is away"
    assert f"127.0.0.1:{port}" in shown.output
    assert SECRET not in shown.output + shown.errors


@pytest.fixture(scope="module")
def strict_server() -> Iterator[PostgresServer]:
    """Asks for passwords, and has no logical decoding."""
    hba = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    with PostgresServer(settings={"wal_level": "replica"}, hba=hba) as server:
        database = Database("strict", server.url())
        database.execute(f"create role app login replication password '{SECRET}'", ORDERS)
        yield server


def test_wrong_password(strict_server: PostgresServer, tmp_path: Path) -> None:
    url = strict_server.url(user="app", password=SECRET + "x")
    pipeline = make_pipeline(tmp_path, Database("strict", url))
    for outcome in outcomes(pipeline, ("check", "FILE"), ("run", "FILE"), ("capture", "FILE")):
        assert_one_line(outcome, 3, f"127.0.0.1:{strict_server.port}", "password")


def test_wal_level_replica(strict_server: PostgresServer, tmp_path: Path) -> None:
    url = strict_server.url(user="app", password=SECRET)
    pipeline = make_pipeline(tmp_path, Database("strict", url))
    (run, check) = outcomes(pipeline, ("run", "FILE"), ("check", "FILE"))
    assert_one_line(run, 1, "wal_level", "logical")
    assert check.code == 1
    assert "wal_level" in check.output + check.errors
    assert "Traceback" not in check.output + check.errors
    assert SECRET not in check.output + check.errors


def test_table_without_key(pipeline: PipelineFactory, postgres: Database) -> None:
    postgres.execute(ORDERS, "create table unkeyed (id int, note text)")
    (check,) = outcomes(pipeline(), ("check", "FILE"))
    shown = check.output + check.errors
    assert check.code == 0, shown
    assert "public.unkeyed has no key: only its inserts are published" in shown
    assert "ALTER TABLE" in shown
    assert "Traceback" not in shown
    postgres.execute("alter table unkeyed add primary key (id)")
    (check,) = outcomes(pipeline(), ("check", "FILE"))
    assert check.code == 0, check.output + check.errors
    assert "has no key" not in check.output


def test_no_table_matches(pipeline: PipelineFactory) -> None:
    (check, run) = outcomes(pipeline(tables=[{"match": "nowhere.*"}]), ("check", "FILE"), ("run", "FILE"))
    assert check.code == 1
    assert "no table matches" in check.output + check.errors
    assert_one_line(run, 1, "no table matches")


def test_no_java(pipeline: PipelineFactory, postgres: Database, tmp_path: Path) -> None:
    postgres.execute(ORDERS)
    file = pipeline()
    empty = tmp_path / "bin"
    empty.mkdir()
    for tool in ("env", "bash", "sh", "dirname", "ps"):
        source = next(Path(folder) / tool for folder in os.environ["PATH"].split(":") if (Path(folder) / tool).exists())
        (empty / tool).symlink_to(source)
    file.environment = {"PATH": str(empty), "JAVA_HOME": ""}
    for outcome in outcomes(file, ("run", "FILE", "--once"), ("query", "FILE", "select 1")):
        assert_one_line(outcome, 3, "Java")


def _fill_log(pipeline: PipelineFile, segments: int) -> list[Path]:
    """A log with that many segments that hold changes, from `penstock capture` alone."""
    capture = Running(pipeline, ("capture", "FILE"))
    try:
        capture.await_text("started")
        for number in range(segments):
            pipeline.database.execute(
                f"insert into orders select g, repeat('x', 500) from generate_series({number}00, {number}99) g"
            )
            pipeline.await_confirmed()
        capture.stop()
    finally:
        capture.clean_up()
    return sorted((path for path in pipeline.log.glob("*.arrow") if path.stat().st_size > 20_000), key=lambda p: p.name)


@pytest.mark.parametrize("damage", ["one byte", "missing"])
def test_corrupted_segment(pipeline: PipelineFactory, postgres: Database, damage: str) -> None:
    postgres.execute(ORDERS)
    file = pipeline()
    file.run_once()  # the table is copied, and needs every segment from here on
    segments = _fill_log(file, 3)
    assert len(segments) == 3
    hurt = segments[1]
    content = bytearray(hurt.read_bytes())
    if damage == "missing":
        hurt.unlink()
    else:
        place = content.index(b"x" * 400)
        content[place] ^= 1
        hurt.write_bytes(content)
    (outcome,) = outcomes(file, ("run", "FILE", "--once"))
    first, last = hurt.name.split("-")[:2]
    assert_one_line(outcome, 1, *((first, last) if damage == "missing" else (hurt.name,)))

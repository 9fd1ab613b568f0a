"""The command line's frame: what is there, how errors end, and that starting it is quick."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from penstock.cli import main as cli
from penstock.cli.run import LogFormat, LogLevel, log_to_stderr
from penstock.control.text.commands import with_file
from penstock.errors import LockedError, PenstockError, SourceUnreachable
from pipeline_files import pipeline_file

COMMANDS = [
    *["demo", "check", "init", "run", "capture", "status", "tables", "resync", "retry", "pause"],
    *["resume", "reset", "drop", "forget"],
    *["schemas", "verify", "query", "events", "replay", "quarantine list", "quarantine show", "quarantine replay"],
    *["quarantine drop", "dlq list", "dlq show", "dlq retry", "dlq ack", "dlq purge"],
    *["serve", "tokens add", "tokens list", "tokens remove", "wait"],
    *["destinations drop", "source ddl-trigger install", "source ddl-trigger remove"],
    *["state export", "state import", "state reset", "slots drop", "import kuvasz", "completion", "jars fetch"],
]


def given_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli.Command, "load", lambda _: fails)


def test_the_commands() -> None:
    assert [" ".join(command.words) for command in cli.COMMANDS] == COMMANDS


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.function)
def test_every_command_is_there_and_explains_itself(command: cli.Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.words, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"penstock {' '.join(command.words)}" in shown


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert command.words[0] in shown


def interrupted_amid_work() -> OSError:
    """As a library raises it that is interrupted, and then cannot end as it should."""
    error = OSError("cannot exit pipeline mode while busy")
    error.__context__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LockedError("it runs already", "Stop it"), 1, "penstock: [already-running] it runs already. Stop it"),
        (
            SourceUnreachable("no connection\nto db", "Start it"),
            3,
            "penstock: [source-unreachable] no connection to db. Start it",
        ),
        (
            PenstockError("url postgresql://app:hunter2@db/shop"),
            1,
            "penstock: [error] url postgresql://app:***@db/shop",
        ),
        (KeyboardInterrupt(), 130, "penstock: interrupted"),
        (interrupted_amid_work(), 130, "penstock: interrupted"),
        (
            BrokenPipeError("password=hunter2 was sent"),
            1,
            "penstock: [unexpected] unexpected BrokenPipeError: password=*** was sent. This is a bug; run it again with"
            " --debug and report it",
        ),
    ],
)
def test_an_error_is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    given_command(monkeypatch, error)
    assert cli.main(["demo"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == line + "\n"


@pytest.mark.parametrize("words", [["--debug", "demo"], ["demo", "--debug"]])
def test_debug_shows_the_traceback_without_passwords(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    given_command(monkeypatch, LockedError("password=hunter2"))
    assert cli.main(words) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "hunter2" not in shown
    assert shown.splitlines()[-1] == "penstock: [already-running] password=***"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bogus"], "No such command 'bogus'. Run `penstock --help`"),
        (["--bogus"], "No such option: --bogus. Run `penstock --help`"),
        (["status"], "Missing argument 'FILE'. Run `penstock status --help`"),
        (["status", "x.yaml", "--twice"], "No such option: --twice. Run `penstock status --help`"),
        (["slots", "bogus"], "No such command 'bogus'. Run `penstock slots --help`"),
        (["slots"], "penstock slots needs one of its commands. Run `penstock slots --help`"),
        (["quarantine"], "penstock quarantine needs one of its commands. Run `penstock quarantine --help`"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"penstock: [usage] {said}\n"


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [(["--help"], {"pyspark", "pyarrow", "sqlalchemy", "psycopg"}), (["status", "--help"], {"pyspark"})],
)
def test_a_command_loads_only_what_it_needs(words: list[str], unneeded: set[str]) -> None:
    program = (
        "import json, sys; from penstock.cli.main import main; main(json.loads(sys.argv[1]));"
        " print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(words)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert unneeded.isdisjoint(json.loads(done.stdout.splitlines()[-1]))


def test_output_that_nobody_reads_is_no_traceback() -> None:
    command = f"{sys.executable} -m penstock.cli.main --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_output_that_nobody_reads_any_more_is_no_error(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path)
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "source", "ddl-trigger", "install", str(file), "--sql"],
        stdout=written,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(written)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_in_messages_name_the_real_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        with_file("Copy it: penstock resync FILE public.FILE", "a.yaml")
        == "Copy it: penstock resync a.yaml public.FILE"
    )
    assert with_file("`penstock quarantine list FILE`", "a.yaml") == "`penstock quarantine list a.yaml`"
    lost = PenstockError("it is lost", "penstock resync FILE public.t")
    assert cli._end(lost, False, ["status", "shop.yaml"]) == 1
    assert capsys.readouterr().err == "penstock: [error] it is lost. penstock resync shop.yaml public.t\n"


def test_the_log_is_text_or_json_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger("apply")
    try:
        log_to_stderr(LogLevel.INFO, LogFormat.JSON, "shop.yaml")
        log.debug("applied", changes=7)
        log.warning("table errored", table="public.t", solution="penstock resync FILE public.t")
        (line,) = capsys.readouterr().err.splitlines()
        told = json.loads(line)
        assert (told["event"], told["level"]) == ("table errored", "warning")
        assert told["solution"] == "penstock resync shop.yaml public.t"
        assert datetime.fromisoformat(told["timestamp"]).utcoffset() == timedelta(0)
        log_to_stderr(LogLevel.DEBUG)
        log.debug("applied", changes=7)
        line = capsys.readouterr().err
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ .*applied", line)
        written = datetime.strptime(line[:20], "%Y-%m-%d %H:%M:%SZ").replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - written) < timedelta(minutes=5)
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("penstock sou", "source"),
        ("penstock run --snap", "--snapshot-only"),
        ("penstock source ddl-trigger i", "install"),
    ],
)
def test_a_shell_completes_commands_and_options(line: str, offered: str) -> None:
    environment = {**os.environ, "_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": line}
    environment["COMP_CWORD"] = str(len(line.split()) - 1)
    command = [sys.executable, "-m", "penstock.cli.main"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout.split(), done.stderr) == ([offered], "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_completion_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "_PENSTOCK_COMPLETE" in capsys.readouterr().out

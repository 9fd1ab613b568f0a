"""Supervision without Spark: a stand-in for `penstock run` that takes the pipeline's lock and ends as it is told."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.status.report import Status
from penstock.server.answers import pipeline_answer
from penstock.server.fleet import Fleet
from penstock.server.listening import Address, listening
from penstock.server.observatory import Observatory
from penstock.server.runs import SupervisedRun
from penstock.state.lock import holder
from pipeline_files import pipeline_file
from server_bench import server_bench

STAND_IN = """
import signal, sys, time
from pathlib import Path
from penstock.state.lock import PipelineLock
home = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
how = (home / "how").read_text().split()
if how[0] == "end":
    sys.stderr.write(f"penstock: [{how[2]}] it is as it is, at postgresql://u:hunter2@db/x\\n")
    sys.exit(int(how[1]))
with PipelineLock(home / "lock"):
    while True:
        time.sleep(0.05)
"""


def await_that(holds: Callable[[], bool], run: SupervisedRun | None = None, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        if run is not None:
            run.tick()
        time.sleep(0.02)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    made = load(pipeline_file(tmp_path))
    made.home.mkdir(parents=True)
    return made


@pytest.fixture
def make(pipeline: Pipeline, tmp_path: Path) -> Iterator[Callable[[str], SupervisedRun]]:
    made: list[SupervisedRun] = []

    def begin(how: str) -> SupervisedRun:
        (pipeline.home / "how").write_text(how)
        command = [sys.executable, "-c", STAND_IN, str(pipeline.home)]
        made.append(SupervisedRun(pipeline, tmp_path / "logs" / "shop.log", command=command))
        return made[-1]

    yield begin
    for run in made:
        run.stop()
        assert run.await_end(20)


def test_a_run_is_started_watched_and_drained(make: Callable[[str], SupervisedRun], pipeline: Pipeline) -> None:
    run = make("stay")
    run.start()
    await_that(lambda: run.view().status == "running", run)
    pid = run.view().pid
    assert pid == holder(pipeline.home / "lock")
    run.start()
    assert run.view().pid == pid, "one that runs is not started twice"
    run.stop()
    assert run.view().status == "stopping"
    await_that(lambda: run.view().status == "stopped", run)
    assert run.view().exit_code == 0
    run.tick()
    assert holder(pipeline.home / "lock") is None


def test_a_run_that_is_killed_comes_back(make: Callable[[str], SupervisedRun]) -> None:
    run = make("stay")
    run.start()
    await_that(lambda: run.view().status == "running", run)
    first = run.view().pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await_that(lambda: run.view().status == "restarting", run)
    assert (run.view().message, run.view().restarts) == ("its process was ended by SIGKILL", 1)
    await_that(lambda: run.view().status == "running", run)
    assert run.view().pid != first


def test_what_needs_an_operator_is_not_tried_again(make: Callable[[str], SupervisedRun]) -> None:
    run = make("end 1 gap")
    run.start()
    await_that(lambda: run.view().status == "failed", run)
    view = run.view()
    assert (view.code, view.exit_code, view.restarts) == ("gap", 1, 0)
    assert view.message == "it is as it is, at postgresql://u:***@db/x"
    away = make("end 3 source-unreachable")
    away.start()
    await_that(lambda: away.view().status == "restarting", away)
    assert away.view().retry_at is not None


def test_the_next_server_takes_a_run_over(make: Callable[[str], SupervisedRun], pipeline: Pipeline) -> None:
    killed = make("stay")
    killed.start()
    await_that(lambda: killed.view().status == "running", killed)
    pid = killed.view().pid
    fresh = make("stay")
    fresh.start()
    assert (fresh.view().status, fresh.view().pid) == ("running", pid)
    fresh.stop()
    await_that(lambda: fresh.view().status == "stopped", fresh)
    killed.tick()
    assert killed.view().status == "stopped"
    assert holder(pipeline.home / "lock") is None


def test_a_folder_is_followed_and_wishes_outlive_the_server(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path)
    (tmp_path / "rules.yaml").write_text("groups: []\n")
    fleet = Fleet([tmp_path], tmp_path / "home", supervise=False)
    try:
        fleet.scan()
        assert [member.name for member in fleet.members()] == ["shop"]
        broken = tmp_path / "other.yaml"
        broken.write_text(file.read_text())
        fleet.scan()
        shown = {member.name: member.shown_status for member in fleet.members()}
        assert shown == {"shop": "stopped", "other": "failed"}
        assert "there is a pipeline shop already" in str(fleet.get("other").problem)
        broken.write_text(file.read_text().replace("name: shop", "name: second"))
        fleet.scan()
        assert [member.name for member in fleet.members()] == ["second", "shop"]
        broken.unlink()
        fleet.scan()
        assert [member.name for member in fleet.members()] == ["shop"]
    finally:
        fleet.close(drain=False)
    wishes = Fleet([tmp_path], tmp_path / "home")
    wishes._note_wanted("shop", False)
    assert json.loads((tmp_path / "home" / "wanted.json").read_text()) == {"shop": False}
    again = Fleet([tmp_path], tmp_path / "home")
    again.start()
    try:
        assert again.get("shop").run.view().status == "stopped"
    finally:
        again.close()


def test_it_listens_with_and_without_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", names]
    made = subprocess.run(["openssl", *words, "-keyout", key, "-out", certificate], capture_output=True)
    assert made.returncode == 0, made.stderr
    with server_bench(tmp_path, pipeline_file(tmp_path)) as bench:
        with listening(bench.app, Address.parse("127.0.0.1:0")) as url, urlopen(f"{url}/health") as answer:
            assert json.load(answer)["status"] == "healthy"
        trusting = ssl.create_default_context(cafile=certificate)
        with (
            listening(bench.app, Address.parse("127.0.0.1:0", certificate, key)) as url,
            urlopen(f"{url}/health", context=trusting) as answer,
        ):
            assert url.startswith("https://")
            assert answer.status == 200


def test_a_changed_file_is_read_again_when_no_run_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on with the file that it began with; the next one, and what the server shows, has the new one."""
    file = pipeline_file(tmp_path)
    home = load(file).home
    home.mkdir(parents=True)
    (home / "how").write_text("stay")
    monkeypatch.setattr("penstock.server.fleet.SCAN_EVERY", 0.1)
    fleet = Fleet([tmp_path], tmp_path / "home", command=(sys.executable, "-c", STAND_IN, str(home)))
    fleet.start()
    try:
        await_that(lambda: fleet.get("shop").run.view().status == "running")
        pid = fleet.get("shop").run.view().pid
        file.write_text(file.read_text() + "tenant: acme\n")
        await_that(lambda: fleet.get("shop").is_changed)
        fleet.scan()
        assert fleet.get("shop").run.view().pid == pid, "nobody restarts it"
        assert pipeline_answer(fleet.get("shop")).file_changed
        fleet.end("shop")
        await_that(lambda: fleet.get("shop").pipeline is not None and not fleet.get("shop").is_changed)
        shop = fleet.get("shop")
        assert shop.pipeline is not None
        assert (shop.pipeline.tenant, shop.run.view().status) == ("acme", "stopped")
        (home / "how").write_text("end 2 config")
        fleet.begin("shop")
        await_that(lambda: fleet.get("shop").is_failed)
        (home / "how").write_text("stay")
        file.write_text(file.read_text().replace("acme", "other"))
        await_that(lambda: fleet.get("shop").run.view().status == "running")
    finally:
        fleet.close()


@pytest.mark.parametrize("written", ["", "{", "[]", "\x00"])
def test_wishes_that_cannot_be_read_start_everything(tmp_path: Path, written: str) -> None:
    (tmp_path / "wanted.json").write_text(written)
    fleet = Fleet([], tmp_path)
    assert fleet._is_wanted("shop")
    fleet._note_wanted("shop", False)
    assert not fleet._is_wanted("shop")


def test_a_look_that_fails_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observatory = Observatory(load(pipeline_file(tmp_path)), every=0.01)
    look = observatory.look

    def fails() -> Status:
        raise RuntimeError("a look that nobody thought of")

    monkeypatch.setattr(observatory, "look", fails)
    observatory.start()
    try:
        await_that(lambda: observatory.blind_because == "RuntimeError: a look that nobody thought of")
        monkeypatch.setattr(observatory, "look", look)
        await_that(lambda: observatory.blind_because == "" and bool(observatory.samples()))
        assert not observatory.is_stale
        monkeypatch.setattr("penstock.server.observatory.STALE_SECONDS", -1.0)
        assert observatory.blind_because == "a look at it takes very long"
    finally:
        observatory.close()

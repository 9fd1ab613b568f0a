"""A standalone cluster's master: asked for before Java is started, and what is said when it does not take us."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.config.load import load
from penstock.control.check.environment import check_destination
from penstock.errors import ConfigError, EnvironmentMissing
from penstock.runtime.spark.session import session
from penstock.runtime.spark.standalone_master import is_registered, require_master, why_ended
from pipeline_files import pipeline_file

WHERE = "`spark.master` in shop.yaml"
UNUSED = "127.0.0.1:1"


@pytest.fixture
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def ask(master: str, wait: float = 0.0) -> None:
    require_master({"spark.master": master}, WHERE, wait)


def test_nobody_listens() -> None:
    with pytest.raises(EnvironmentMissing) as raised:
        ask(f"spark://{UNUSED}")
    said = str(raised.value)
    assert said.startswith(f"Spark's master spark://{UNUSED} ({WHERE}) does not answer: {UNUSED}: Connection refused. ")
    assert "Start the cluster" in said
    assert raised.value.exit_code == 3


def test_one_of_several_is_enough(listener: str) -> None:
    ask(f"spark://{UNUSED},{listener}")


def test_of_several_that_do_not_answer_each_is_named() -> None:
    with pytest.raises(EnvironmentMissing, match=r"127\.0\.0\.1:1: .*; localhost:2: "):
        ask(f"spark://{UNUSED},localhost:2")


def test_a_master_that_is_being_started_is_waited_for() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # refuses until it listens
        starting = threading.Timer(0.5, server.listen)
        starting.start()
        ask(f"spark://127.0.0.1:{server.getsockname()[1]}", wait=60.0)
        starting.join()


@pytest.mark.parametrize("address", ["spark-master", "host:port", "host:7077,", ":7077"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match=r"not a host with its port. Write it like spark://spark-master:7077"):
        ask(f"spark://{address}")


@pytest.mark.parametrize("settings", [{}, {"spark.master": "local[2]"}, {"spark.master": "k8s://https://127.0.0.1:1"}])
def test_masters_of_another_kind_are_left_to_spark(settings: dict[str, str]) -> None:
    require_master(settings, WHERE, 0.0)


def test_an_id_that_no_master_gave() -> None:
    assert is_registered("app-20260504120003-0007")
    assert not is_registered("spark-application-1777888999000")


def test_why_the_application_was_ended(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    assert why_ended(log, 0) == ""
    earlier = "… ERROR StandaloneSchedulerBackend: Application has been killed. Reason: of an earlier run\n"
    log.write_text(earlier)
    assert why_ended(log, len(earlier.encode())) == ""
    with log.open("a") as file:
        file.write("… Application has been killed. Reason: All masters are unresponsive! Giving up.\nmore\n")
    assert why_ended(log, len(earlier.encode())) == "All masters are unresponsive! Giving up"


def test_a_session_is_not_begun_without_a_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.spark.session.require_master", partial(require_master, wait=0))
    pipeline = load(pipeline_file(tmp_path, spark={"master": f"spark://{UNUSED}"}))
    with pytest.raises(
        EnvironmentMissing, match=rf"spark://127\.0\.0\.1:1 \(`spark\.master` in {tmp_path}/shop\.yaml\)"
    ):
        session(pipeline)


def test_check_asks_for_the_master(tmp_path: Path, listener: str) -> None:
    def findings(master: str) -> list[str]:
        pipeline = load(pipeline_file(tmp_path, spark={"master": master}))
        return [finding.what for finding in check_destination(pipeline) if "master" in finding.what]

    assert findings(f"spark://{listener}") == []
    (refused,) = findings(f"spark://{UNUSED}")
    assert "does not answer" in refused
    (malformed,) = findings("spark://nowhere")
    assert "not a host with its port" in malformed

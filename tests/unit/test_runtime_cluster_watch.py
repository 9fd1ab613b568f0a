"""What is said and done about a cluster that gives no executors, has lost its master, or has ended our application."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import EnvironmentMissing, SourceUnreachable
from penstock.runtime.process.signals import SignalFlag
from penstock.runtime.spark.cluster_watch import EXECUTORS_GONE_AFTER, MASTER_GONE_AFTER, TELL_EVERY, ClusterWatch

WHERE = "`spark.master` in shop.yaml"
GONE = "spark://127.0.0.1:1"
KILLED = "2026-05-04 ERROR Backend: Application has been killed. Reason: Master removed our application: KILLED\n"


@dataclass
class ApplicationTwin:
    number: int = 0
    stopped: bool = False
    cancelled: bool = False
    without_java: bool = False

    def has_lost_java(self) -> bool:
        return self.without_java

    def is_stopped(self) -> bool:
        return self.stopped

    def executors(self) -> int:
        return self.number

    def cancel_all_jobs(self) -> None:
        self.cancelled = True


@pytest.fixture
def master() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"spark://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def application() -> ApplicationTwin:
    return ApplicationTwin()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "spark.log"
    log.write_text(KILLED.replace("KILLED", "of an earlier run"))
    return log


def watch_of(application: ApplicationTwin, master: str, log: Path) -> ClusterWatch:
    return ClusterWatch(application, {"spark.master": master}, WHERE, log, SignalFlag())


def look_for(watch: ClusterWatch, seconds: float, begin: float = 1000.0) -> list[str]:
    """Looks once a second; gives the events of what was said."""
    with capture_logs() as said:
        for second in range(round(seconds) + 1):
            watch.look(begin + second)
    return [line["event"] for line in said]


def test_jobs_that_wait_for_executors_are_told_of(application: ApplicationTwin, master: str, log: Path) -> None:
    watch = watch_of(application, master, log)
    with watch.job():
        assert look_for(watch, TELL_EVERY - 1) == []
        assert look_for(watch, 2 * TELL_EVERY, 1000 + TELL_EVERY) == ["no executors"] * 3
        application.number = 1
        assert look_for(watch, 3 * TELL_EVERY, 2000) == []


def test_nothing_is_said_while_nobody_needs_executors(application: ApplicationTwin, master: str, log: Path) -> None:
    assert look_for(watch_of(application, master, log), 3 * TELL_EVERY) == []


def test_executors_that_never_came_are_waited_for(application: ApplicationTwin, master: str, log: Path) -> None:
    watch = watch_of(application, master, log)
    with watch.job():
        look_for(watch, 3 * EXECUTORS_GONE_AFTER)
        assert watch.ended() is None


def test_executors_that_went_are_given_up(application: ApplicationTwin, master: str, log: Path) -> None:
    watch = watch_of(application, master, log)
    application.number = 2
    with watch.job():
        look_for(watch, 3)
        application.number = 0
        look_for(watch, EXECUTORS_GONE_AFTER - TELL_EVERY, 2000)
        assert watch.ended() is None
        look_for(watch, 2 * TELL_EVERY, 2000 + EXECUTORS_GONE_AFTER - TELL_EVERY)
    ended = watch.ended()
    assert ended is not None
    assert f"the cluster of {master} has had no executors for us" in str(ended)
    assert ended.exit_code == 3


def test_a_master_that_is_gone_with_its_executors(application: ApplicationTwin, log: Path) -> None:
    watch = watch_of(application, GONE, log)
    assert set(look_for(watch, TELL_EVERY + MASTER_GONE_AFTER - 1)) == {"master does not answer"}
    assert watch.ended() is None
    look_for(watch, TELL_EVERY, 1000 + TELL_EVERY + MASTER_GONE_AFTER)
    ended = watch.ended()
    assert ended is not None
    assert f"Spark's master {GONE} ({WHERE}) and our executors are gone: 127.0.0.1:1: Connection refused" in str(ended)
    with pytest.raises(EnvironmentMissing), watch.job():
        raise AssertionError("no job may begin any more")


def test_a_master_that_is_gone_while_executors_work(application: ApplicationTwin, log: Path) -> None:
    application.number = 1
    watch = watch_of(application, GONE, log)
    assert look_for(watch, 3 * (TELL_EVERY + MASTER_GONE_AFTER)) == []
    assert watch.ended() is None


def test_an_application_that_was_ended_says_why(application: ApplicationTwin, master: str, log: Path) -> None:
    watch = watch_of(application, master, log)
    application.stopped = True
    with log.open("a") as file:
        file.write(KILLED)
    with pytest.raises(EnvironmentMissing) as raised, watch.watching():
        raise SourceUnreachable("what it led to")
    said = f"Spark has ended our application on {master}: Master removed our application: KILLED. Start penstock again"
    assert str(raised.value).startswith(said)
    assert "earlier" not in str(raised.value)


def test_a_run_that_was_stopped_says_why_too(application: ApplicationTwin, master: str, log: Path) -> None:
    with (
        pytest.raises(EnvironmentMissing, match="ended our application"),
        watch_of(application, master, log).watching(),
    ):
        application.stopped = True


def test_the_run_is_stopped_and_its_jobs_cancelled(application: ApplicationTwin, log: Path) -> None:
    stop = SignalFlag()
    watch = ClusterWatch(application, {"spark.master": GONE}, WHERE, log, stop)
    with watch.job():
        look_for(watch, 2 * (TELL_EVERY + MASTER_GONE_AFTER))
    with pytest.raises(EnvironmentMissing, match="are gone"), watch.watching():
        assert stop.wait(30)
    assert application.cancelled


def test_a_failed_job_is_its_own_matter_while_the_application_lives(
    application: ApplicationTwin, master: str, log: Path
) -> None:
    assert watch_of(application, master, log).ended("Task 0 failed 4 times") is None


def test_what_a_job_said_is_told_when_spark_says_nothing(application: ApplicationTwin, log: Path) -> None:
    application.stopped = True
    ended = watch_of(application, "yarn", log).ended("Job aborted due to stage failure: the driver was told to")
    assert ended is not None
    assert (
        ended.what
        == "Spark has ended our application on yarn: Job aborted due to stage failure: the driver was told to"
    )


def test_other_errors_pass(application: ApplicationTwin, log: Path) -> None:
    with pytest.raises(SourceUnreachable, match="away"), watch_of(application, "local", log).watching():
        raise SourceUnreachable("away")


@pytest.mark.parametrize("where", ["local[2]", "spark://127.0.0.1:1"])
def test_the_end_of_java_ends_a_run_that_has_nothing_to_do(
    application: ApplicationTwin, log: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runtime.spark.cluster_watch.LOOK_EVERY", 0.01)
    stop = SignalFlag()
    watch = ClusterWatch(application, {"spark.master": where}, WHERE, log, stop)
    application.number = 1

    def idle() -> None:
        with watch.watching():
            application.without_java = True
            assert stop.wait(20)

    with pytest.raises(EnvironmentMissing, match="Spark's Java process has ended"):
        idle()
    assert not application.cancelled

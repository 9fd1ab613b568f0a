"""Fixtures for the whole suite: real servers with a fresh database a test, pipelines, and one Spark that reads.

`postgres` is a database on the embedded server (18), `debian_postgres` one on Debian's; with `any_postgres` a test runs
on both.
`pipeline` makes pipeline files with settings so small that everything happens within seconds; see running.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from databases import Database, fresh_database
from kafka_server import KafkaServer
from lake import Lake, reader_session
from penstock.demo.server import PostgresServer
from running import PipelineFactory, make_pipeline
from stream_servers import Server, nats_server, redis_server

settings.register_profile("penstock", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

_SCRIPTS = Path(__file__).parent.parent / "scripts"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the sizes that the issues state; takes about four hours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A test that says how to log does not hide the log lines that a later test of the same process looks for."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the sizes are the issues' own."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def debian_server() -> Iterator[PostgresServer]:
    found = subprocess.run([str(_SCRIPTS / "debian_postgres.sh")], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    with PostgresServer(binaries=Path(found.stdout.strip())) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[Server]:
    """A Redis server that is only ever killed by tests that start their own."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[Server]:
    with nats_server() as server:
        yield server


@pytest.fixture
def postgres(embedded_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(embedded_server) as database:
        yield database


@pytest.fixture
def debian_postgres(debian_server: PostgresServer) -> Iterator[Database]:
    with fresh_database(debian_server) as database:
        yield database


@pytest.fixture(params=["embedded_server", "debian_server"])
def any_postgres(request: pytest.FixtureRequest) -> Iterator[Database]:
    with fresh_database(request.getfixturevalue(request.param)) as database:
        yield database


@pytest.fixture
def pipeline(postgres: Database, tmp_path: Path) -> PipelineFactory:
    """`pipeline(**changes)` writes a pipeline file for the test's database."""
    return lambda **changes: make_pipeline(tmp_path, postgres, **changes)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = reader_session()
    yield session
    session.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """The warehouse of a pipeline that was made in the test's own folder."""
    return Lake(spark, tmp_path / "warehouse")

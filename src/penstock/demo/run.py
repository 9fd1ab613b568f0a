"""`penstock demo`: a throw-away database with a small shop, live traffic, the pipeline beside it, and a closing proof.

The pipeline is the real command, `penstock run FILE`, in a process of its own. Everything lives in one temporary
folder, and nothing is left running or lying about, however it ends. Equal tables: returns. Anything else raises.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Literal

import yaml
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from penstock.config.load import load
from penstock.config.model import Pipeline
from penstock.control.query.result_view import as_table
from penstock.control.query.spark_sql import reading_session, run_query
from penstock.control.status.gather import Observer
from penstock.control.status.report import Status, errored
from penstock.control.text.figures import count_text, seconds_text
from penstock.control.verify.proof import TableProof, proof_table, prove
from penstock.demo.live import watch
from penstock.demo.server import PostgresServer
from penstock.demo.shop_connection import Connect, PostgresShop
from penstock.demo.traffic import Traffic, fill
from penstock.destinations.factory import make_readable
from penstock.errors import CheckFailed, EnvironmentMissing
from penstock.model.position import Position
from penstock.model.table_state import State
from penstock.runtime.spark.session import require_java
from penstock.source.contract import Session
from penstock.source.factory import source_of

Kind = Literal["postgres", "mysql"]

SEED = 2026
LAKE = "lake"
START_SECONDS = 120.0
DRAIN_SECONDS = 60.0
STOP_SECONDS = 60.0

QUERIES = {
    "Which countries buy most?": """\
SELECT c.country, count(*) AS orders, sum(o.total) AS revenue
FROM {schema}.orders o JOIN {schema}.customers c ON c.id = o.customer_id
GROUP BY c.country ORDER BY revenue DESC LIMIT 5""",
    "What sells best, and is there any left?": """\
SELECT p.sku, p.title, sum(i.quantity) AS sold, p.price, p.stock
FROM {schema}.order_items i JOIN {schema}.products p ON p.sku = i.sku
GROUP BY p.sku, p.title, p.price, p.stock ORDER BY sold DESC, p.sku LIMIT 5""",
}


def demo(console: Console, seconds: float, kind: Kind = "postgres") -> None:
    """Return when lake and source are equal. CheckFailed when they are not, or when the pipeline failed."""
    require_java()
    started = time.monotonic()
    with _ends_in_order() as ending, ExitStack() as cleanup:
        try:
            proofs = _show(console, seconds, kind, cleanup)
        finally:
            ending()
    different = [str(proof.table) for proof in proofs if not proof.equal]
    if different:
        raise CheckFailed(f"lake and source differ in {', '.join(different)}", "This is a bug; please report it")
    rows = count_text(sum(proof.source.rows for proof in proofs))
    took = seconds_text(time.monotonic() - started)
    console.print(f"[green]Lake and source are equal[/]: {rows} rows in {len(proofs)} tables. It took {took}.")


@dataclass(frozen=True)
class _ShopServer:
    url: str
    connect: Connect
    schema: str


def _postgres(cleanup: ExitStack) -> _ShopServer:
    server = cleanup.enter_context(PostgresServer())
    return _ShopServer(server.url(), lambda: PostgresShop.at(server.url()), "public")


def _mysql(cleanup: ExitStack) -> _ShopServer:
    try:
        found = import_module("penstock.demo.shop_on_mariadb")
    except ImportError as error:
        raise EnvironmentMissing(f"{error.name} is not installed", "pip install 'penstock[mysql]'") from None
    server = cleanup.enter_context(found.MariadbServer())
    return _ShopServer(server.url(), server.connect, found.DATABASE)


_SERVERS: dict[Kind, tuple[str, Callable[[ExitStack], _ShopServer]]] = {
    "postgres": ("Postgres", _postgres),
    "mysql": ("MariaDB", _mysql),
}


def _show(console: Console, seconds: float, kind: Kind, cleanup: ExitStack) -> list[TableProof]:
    folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
    called, start = _SERVERS[kind]
    with console.status(f"starting {called} …"):
        server = start(cleanup)
        with closing(server.connect()) as connection:
            connection.create_schema()
    pipeline = _pipeline(folder, kind, server)
    session = cleanup.enter_context(source_of(pipeline.source).connect())
    _say(console, f"{session.version} with an empty shop, at {server.url}")
    _say(console, f"the pipeline file, {pipeline.file}:")
    console.print(Padding.indent(Text(pipeline.file.read_text().strip(), "cyan"), 4))
    with console.status("starting the pipeline …"):
        run = cleanup.enter_context(_running(pipeline))
        run.wait_until_streaming()
    _say(console, "`penstock run` is streaming; the shop opens")
    observer = cleanup.enter_context(Observer(pipeline))
    _trade(console, server.connect, session, run, observer, seconds)
    with console.status("stopping the pipeline …"):
        run.stop()
    _say(console, "the pipeline has stopped")
    console.print()
    return _prove(console, session, pipeline, server.schema)


class _Run:
    """`penstock run FILE` as a process; what it says goes into a file beside the pipeline's."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.said = pipeline.file.with_name("run.log")
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.main", "run", str(pipeline.file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops it in order
            )

    def wait_until_streaming(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while "streaming" not in self.said.read_text(errors="replace"):
            self.require_alive()
            if time.monotonic() > deadline:
                raise self._failed(f"the pipeline did not start within {START_SECONDS:.0f} s")
            time.sleep(0.1)

    def require_alive(self) -> None:
        if self.process.poll() is not None:
            raise self._failed(f"the pipeline ended with exit code {self.process.returncode}")

    def stop(self) -> None:
        """Drains it; CheckFailed unless it ends well."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failed(f"the pipeline did not stop within {STOP_SECONDS:.0f} s") from None
        if code != 0:
            raise self._failed(f"the pipeline ended with exit code {code}")

    def end(self) -> None:
        """However it stands: nothing of it is left running."""
        try:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _failed(self, what: str) -> CheckFailed:
        lines = self.said.read_text(errors="replace").strip().splitlines()
        return CheckFailed(what, f"Its last words: {lines[-1]}" if lines else "It said nothing")


@contextmanager
def _running(pipeline: Pipeline) -> Iterator[_Run]:
    run = _Run(pipeline)
    try:
        yield run
    finally:
        run.end()


def _trade(console: Console, connect: Connect, session: Session, run: _Run, observer: Observer, seconds: float) -> None:
    """Fill the shop, let it trade, and return when everything it did has been applied."""

    def look() -> Status:
        run.require_alive()
        status = observer.look()
        for table in errored(status.tables):
            raise CheckFailed(f"table {table.table} is Errored: {table.error}", table.solution)
        return status

    with closing(connect()) as connection:
        shop = fill(connection, SEED)
    traffic = Traffic(connect, shop, seed=SEED)
    closes = time.monotonic() + seconds
    try:
        traffic.start()
        watch(
            console,
            look,
            title=lambda: f"shop is open for {max(closes - time.monotonic(), 0):.0f} s more",
            done=lambda _: time.monotonic() >= closes,
            transient=True,
        )
    finally:
        traffic.stop()
    position, stopped = session.head(), time.monotonic()
    last = watch(
        console,
        look,
        title=lambda: "shop is closed",
        done=lambda status: _all_applied(status, position) or _too_late(stopped),
    )
    took = seconds_text(time.monotonic() - stopped)
    changes = count_text(sum(table.changes for table in last.tables))
    copied = sum(table.copy.rows for table in last.tables if table.copy is not None)
    came = f" and {count_text(copied)} rows copied" if copied else ""
    _say(console, f"{changes} changes were applied{came}; {took} after the shop closed nothing was left to apply")


def _all_applied(status: Status, position: Position) -> bool:
    """Return whether everything is applied.

    A table that is still being copied takes no part in what has been processed.
    """
    is_ready = all(table.state is State.READY for table in status.tables)
    return is_ready and status.position_at(LAKE) >= position


def _too_late(since: float) -> bool:
    if time.monotonic() - since > DRAIN_SECONDS:
        raise CheckFailed(f"the pipeline did not drain within {DRAIN_SECONDS:.0f} s", "This is a bug; please report it")
    return False


def _prove(console: Console, session: Session, pipeline: Pipeline, schema: str) -> list[TableProof]:
    schemas = session.discover(pipeline)
    with ExitStack() as cleanup:
        with console.status("starting Spark to compare lake and source …"):
            spark = cleanup.enter_context(reading_session(pipeline))
            tables = {pipeline.target(one.table): one for one in schemas}
            proofs = prove(session, spark, make_readable(pipeline.lake), tables)
        console.print("[bold]Proof[/]: rows and checksums of all values, computed from the source and by Spark")
        _print_table(console, proof_table(proofs))
        for question, template in QUERIES.items():
            statement = template.format(schema=schema)
            console.print(f"[bold]{question}[/]  Asked of the lake in Spark SQL:")
            console.print(Padding.indent(Text(statement, "cyan"), 4))
            _print_table(console, as_table(run_query(spark, statement)))
    return proofs


def _pipeline(folder: Path, kind: Kind, server: _ShopServer) -> Pipeline:
    file = folder / "pipeline.yaml"
    document = {
        "version": 1,
        "name": "shop",
        "source": {"type": kind, "url": server.url},
        "tables": [{"match": f"{server.schema}.*"}],
        "destinations": [{"name": LAKE, "type": "iceberg", "warehouse": "./warehouse"}],
    }
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return load(file)


def _say(console: Console, text: str) -> None:
    console.print(f"[green]•[/] {text}", highlight=False)


def _print_table(console: Console, table: Table) -> None:
    console.print(Padding(table, (1, 2), expand=False))


@contextmanager
def _ends_in_order() -> Iterator[Callable[[], None]]:
    """SIGTERM ends the demo as Ctrl-C does. Once it is ending, which it says by calling, no signal disturbs that."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ending()
        raise KeyboardInterrupt

    def ending() -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

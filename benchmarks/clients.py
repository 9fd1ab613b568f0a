"""What 50 clients of the server cost: how long they wait for an answer, and what the pipeline's freshness notices.

    python benchmarks/clients.py [--seconds 60] [--rate 2000] [--clients 50] [--every 1.0]

A pipeline follows a table at a steady rate of changes, and `penstock serve` has taken its run over. First nobody asks
the server anything; then 50 clients at once do, each once a second, in turn for the routes that a page, a script and
Prometheus ask for, with a token, over a connection that stays open. Two figures: how long an answer takes, and the age
of a change when it can be read in the lake, beside the time before, in the same run. Any answer but 200 ends it.
"""

from __future__ import annotations

import argparse
import http.client
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Result, parser, report, say
from penstock.demo.server import PostgresServer
from pipelines import Run
from targets import CLIENTS_P99, FRESHNESS_WITH_CLIENTS
from traffic import Committed, Traffic
from visibility import LakeReader, matched

TABLE = "t0"
SETTLE_SECONDS = 20.0  # of traffic that is not counted, while caches and Java's compiler warm up
LATE_SECONDS = 300.0  # after which a transaction that is not visible ends the benchmark
START_SECONDS = 60.0
ROUTES = (
    "/pipelines",
    "/pipelines/bench",
    "/pipelines/bench/status",
    "/pipelines/bench/tables",
    "/pipelines/bench/checkpoints",
    "/pipelines/bench/history?seconds=60",
    "/metrics",
    "/health",
    "/ready",
)
PERCENTILES = (50, 95, 99, 100)


class Clients:
    """So many at once, each with a connection of its own. `waits` has the seconds of each answer."""

    def __init__(self, host: str, port: int, token: str, clients: int, every: float) -> None:
        self._where, self._token, self._every = (host, port), token, every
        self.waits: list[float] = []
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection(*self._where, timeout=30)
        headers = {"Authorization": f"Bearer {self._token}"}
        self._stop.wait(self._every * number / len(self._threads))
        due = time.monotonic()
        while not self._stop.is_set():
            path = ROUTES[number % len(ROUTES)]
            began = time.monotonic()
            try:
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    self.wrong.append(f"{path}: {answer.status}")
            except OSError as error:
                self.wrong.append(f"{path}: {error}")
                connection.close()
            self.waits.append(time.monotonic() - began)
            number, due = number + 1, due + self._every
            self._stop.wait(max(0.0, due - time.monotonic()))
        connection.close()


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--rate", type=int, default=2_000)
    arguments.add_argument("--clients", type=int, default=50)
    arguments.add_argument("--every", type=float, default=1.0, help="seconds between two requests of a client")
    _run(arguments.parse_args())


def _run(options: argparse.Namespace) -> None:
    with (
        PostgresServer() as server,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Traffic(server.url(), [TABLE], options.rate) as traffic,
        Run(Path(scratch), server.url()) as run,
        _serving(run.file) as (host, port, token),
    ):
        run.await_joined(1)
        reader = LakeReader(Path(scratch) / "warehouse")
        reader.start()
        traffic.run(SETTLE_SECONDS)
        say(f"nobody asks, for {options.seconds:g} s")
        alone = traffic.run(options.seconds)[TABLE]
        say(f"{options.clients} clients ask, for {options.seconds:g} s")
        with Clients(host, port, token, options.clients, options.every) as clients:
            beside = traffic.run(options.seconds)[TABLE]
        traffic.run(LATE_SECONDS, until=lambda: reader.has({TABLE: beside}) or not run.alive)
        reader.stop()
    if clients.wrong:
        raise SystemExit(f"{len(clients.wrong)} answers were wrong, such as {clients.wrong[0]}")
    waits = sorted(one * 1000 for one in clients.waits)
    before, during = _ages(alone, reader), _ages(beside, reader)
    grown = _percentile(during, 50) / _percentile(before, 50)
    report(
        "clients",
        f"{options.clients} clients of the server, each every {options.every:g} s, at {options.rate:,} changes/s",
        ("what", "figures", "p50", "p95", "p99", "max"),
        [
            ("answers, ms", len(waits), *(round(_percentile(waits, one), 1) for one in PERCENTILES)),
            ("freshness, nobody asks, s", len(before), *(round(_percentile(before, one), 3) for one in PERCENTILES)),
            ("freshness, with clients, s", len(during), *(round(_percentile(during, one), 3) for one in PERCENTILES)),
        ],
        options=options,
        results=[
            Result(
                f"an answer to one of {options.clients} clients, p99",
                f"{_percentile(waits, 99):.0f} ms",
                "",
                _percentile(waits, 99),
                "ms",
                CLIENTS_P99,
            ),
            Result(
                f"freshness with {options.clients} clients, p50",
                f"{_percentile(during, 50):.2f} s",
                f"{_percentile(before, 50):.2f} s while nobody asks",
                grown,
                "×",
                FRESHNESS_WITH_CLIENTS,
            ),
        ],
    )


def _ages(committed: list[Committed], reader: LakeReader) -> list[float]:
    return sorted(seen - at for at, seen in matched(committed, reader.seen[TABLE]))


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


@contextmanager
def _serving(file: Path) -> Iterator[tuple[str, int, str]]:
    """A server that has taken the file's run over, which it leaves running when it is killed."""
    command = [sys.executable, "-m", "penstock.cli.main", "serve", str(file), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said: list[str] = []
    found: dict[str, str] = {}
    ready = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            for name, pattern in (("token", r"pst_\S+"), ("address", r"http://([\d.]+:\d+)")):
                match = re.search(pattern, line)
                if match is not None:
                    found.setdefault(name, match[match.lastindex or 0])
            if len(found) == 2:
                ready.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        if not ready.wait(START_SECONDS):
            raise SystemExit("the server did not start:\n" + "".join(said[-20:]))
        host, _, port = found["address"].partition(":")
        yield host, int(port), found["token"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    main()

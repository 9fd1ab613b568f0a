"""What a server that is asked a lot costs: 50 clients of `penstock serve`, while 2,000 changes/s flow into Iceberg.

    python benchmarks/server.py [--clients 50] [--seconds 60] [--rate 2000] [--pause 1]

Freshness is measured as in `freshness`, without clients, with them, and without them again. Each client asks for one
route or page after the other, with a pause between two as a page or a dashboard has it, over a connection of its own;
all of them are one other process. No answer may be an error. The routes are those that read: what waits for a source or
starts a process (`/sources`, `/wait`, `/query`, `/verify`) takes few at once, and the others get 429.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness import Result, parser, report, say
from penstock.demo.server import PostgresServer
from pipelines import write_pipeline
from targets import SERVER_ANSWER_P99, SERVER_COST
from traffic import Committed, Traffic
from visibility import LakeReader, matched, prove
from watch import Watch

SETTLE_SECONDS = 10.0
LATE_SECONDS = 300.0
TABLE = "t0"
BENCH, PAGE = "/pipelines/bench", "/ui/pipelines/bench"
PATHS = (
    "/health",
    "/ready",
    "/pipelines",
    BENCH,
    *(f"{BENCH}/{part}" for part in ("status", "checkpoints", "history", "tables", "schemas", "quarantine", "log")),
    f"{BENCH}/tables/public.{TABLE}",
    f"{BENCH}/schemas/public/{TABLE}/versions",
    f"{BENCH}/journal/dlq",
    "/metrics",
    "/log-level",
    "/openapi.json",
    "/ui",
    PAGE,
    *(f"{PAGE}/{part}" for part in ("tables", f"tables/public.{TABLE}", "messages", "map")),
)


@dataclass
class Answers:
    """`seconds` of all answers, `errors` among them, and the slowest answer of each path."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)

    def percentile(self, percent: int) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--clients", type=int, default=50)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--rate", type=int, default=2_000)
    arguments.add_argument("--pause", type=float, default=1.0, help="seconds between an answer and the next request")
    options = arguments.parse_args()
    with (
        PostgresServer() as source,
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Traffic(source.url(), [TABLE], options.rate) as traffic,
        _served(write_pipeline(Path(scratch), source.url())) as (process, port, token),
    ):
        _await_ready(port, token)
        reader = LakeReader(Path(scratch) / "warehouse")
        reader.start()
        with Watch(process.pid) as watch:
            traffic.run(SETTLE_SECONDS)
            say("without clients")
            before = traffic.run(options.seconds)[TABLE]
            say(f"with {options.clients} clients")
            clients = _Clients(port, token, options.clients, options.seconds, options.pause)
            asked = traffic.run(options.seconds)[TABLE]
            answers = clients.answers()
            say(f"{len(answers.seconds):,} answers, p99 {answers.percentile(99) * 1000:.0f} ms; without clients again")
            after = traffic.run(options.seconds)[TABLE]
            reached, written = traffic.reached, {TABLE: [*before, *asked, *after]}
            late = traffic.run(LATE_SECONDS, until=lambda: reader.has(written)).get(TABLE, [])
            reader.stop()
        if not reader.has(written):
            raise SystemExit("the last transactions did not become visible")
        prove(reader.seen[TABLE], [*written[TABLE], *late])
    if answers.errors:
        raise SystemExit(f"{len(answers.errors)} errors, the first: {answers.errors[0]}")

    def ages(part: list[Committed]) -> list[float]:
        return sorted(seen - committed for committed, seen in matched(part, reader.seen[TABLE]))

    quiet, busy = ages([*before, *after]), ages(asked)
    medians = statistics.median(quiet), statistics.median(busy)
    slowest = max(answers.slowest, key=lambda path: answers.slowest[path])
    report(
        "server",
        f"{options.clients} clients of a server whose pipeline applies {options.rate:,} changes/s",
        (
            "answers",
            "errors",
            "p50 ms",
            "p95 ms",
            "p99 ms",
            "max ms",
            "slowest",
            "freshness p50 s",
            "without",
            "written/s",
        ),
        [
            (
                len(answers.seconds),
                len(answers.errors),
                *(round(answers.percentile(percent) * 1000, 1) for percent in (50, 95, 99, 100)),
                slowest,
                round(medians[1], 3),
                round(medians[0], 3),
                round(reached),
            )
        ],
        options=options,
        results=[
            Result(
                f"answers to {options.clients} clients at {options.rate:,} changes/s, p99",
                f"{len(answers.seconds):,} answers, no error",
                "",
                answers.percentile(99) * 1000,
                "ms",
                SERVER_ANSWER_P99,
            ),
            Result(
                f"freshness p50 with {options.clients} clients",
                f"{medians[1]:.2f} s",
                f"without clients {medians[0]:.2f} s",
                medians[1] / medians[0],
                "× its age",
                SERVER_COST,
            ),
        ],
        processes={"server and run": watch.roles},
        slowest={path: round(seconds * 1000, 1) for path, seconds in answers.slowest.items()},
    )


@contextmanager
def _served(file: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """`penstock serve` over the file: its process, its port and its token."""
    log = file.parent / "server.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "serve", str(file), "--listen", "127.0.0.1:0"],
            stdout=said,
            stderr=said,
            text=True,
        )
    try:
        deadline = time.monotonic() + 60
        while (listening := re.search(r"url=http://127\.0\.0\.1:(\d+)", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        token = re.search(r"pst_\S+", log.read_text())
        assert token is not None
        yield process, int(listening[1]), token[0]
    finally:
        process.terminate()
        process.wait(180)


def _await_ready(port: int, token: str) -> None:
    deadline = time.monotonic() + 900
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while True:
        connection.request("GET", f"{BENCH}/tables", headers={"Authorization": f"Bearer {token}"})
        tables = json.loads(connection.getresponse().read()).get("tables", [])
        if any(one["state"] == "Ready" for one in tables):
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the table did not become Ready: {tables}")
        time.sleep(0.5)


class _Clients:
    """Many clients in one process of their own, so that what they take is not the measuring process' time."""

    def __init__(self, port: int, token: str, number: int, seconds: float, pause: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._answers: multiprocessing.Queue[Answers] = context.Queue()
        self._process = context.Process(
            target=_ask_all, args=(port, token, number, seconds, pause, self._answers), daemon=True
        )
        self._process.start()

    def answers(self) -> Answers:
        found = self._answers.get(timeout=300)
        self._process.join()
        return found


def _ask_all(
    port: int, token: str, number: int, seconds: float, pause: float, queue: multiprocessing.Queue[Answers]
) -> None:
    found, guard, end = Answers(), threading.Lock(), time.monotonic() + seconds
    threads = [
        threading.Thread(target=_ask, args=(port, token, one, end, pause, found, guard)) for one in range(number)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.put(found)


def _ask(port: int, token: str, first: int, end: float, pause: float, found: Answers, guard: threading.Lock) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    time.sleep(pause * (first % 20) / 20)  # they do not come all at one moment
    at = first
    while time.monotonic() < end:
        path = PATHS[at % len(PATHS)]
        at += 1
        began = time.monotonic()
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            error = f"{path}: {answer.status}" if answer.status != 200 else ""
        except (OSError, http.client.HTTPException) as failed:
            error = f"{path}: {failed!r}"
            connection.close()
        took = time.monotonic() - began
        with guard:
            found.seconds.append(took)
            found.slowest[path] = max(took, found.slowest.get(path, 0.0))
            if error:
                found.errors.append(error)
        time.sleep(pause)


if __name__ == "__main__":
    main()

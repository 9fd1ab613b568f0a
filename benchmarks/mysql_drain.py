"""How fast waiting changes of a MySQL server are captured, and reach Iceberg, beside other readers of its binlog.

    python benchmarks/mysql_drain.py [--small 180000] [--large 1000000] [--rounds 3]

First 180,000 transactions of one row wait in the binlog: read by penstock's capture alone, by `mysqlbinlog --raw`,
which writes what comes into files and is the limit, and (a tenth of them) by python-mysql-replication. Then a million
changes in large transactions wait besides, and `penstock run --once` drains all of it into a lake. Nobody uses TLS.
Readers take turns in one run, and the best round of each counts.

Capture's clock starts when it says `started`, mysqlbinlog's with its process. Capture cuts events into rows, verifies
their checksums, and syncs its segments; mysqlbinlog does none of that. The drain's clock runs from the moment when
capture reads the binlog until the last commit: the start of Spark lies within it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness import Result, parser, report, say
from mysql_readers import (
    COLUMNS,
    Backlog,
    head,
    mysql_server,
    mysqlbinlog,
    python_replication,
    write_large,
    write_small,
)
from targets import MYSQL_CAPTURE, MYSQL_DRAIN
from watch import Usage


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--small", type=int, default=180_000, help="transactions of one row")
    arguments.add_argument("--large", type=int, default=1_000_000, help="changes in large transactions")
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    captured: list[float] = []
    raw: list[float] = []
    drained: list[float] = []
    roles: dict[str, dict[str, Usage]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as text, mysql_server(Path(text)) as server:
        folder = Path(text)
        server.execute(*(f"CREATE TABLE shop.{name} ({COLUMNS})" for name in ("small", "large")))
        backlog = Backlog(folder, server)
        begin = head(server)
        say(f"writing {options.small:,} small transactions")
        write_small(server, options.small)
        end = head(server)
        for _ in range(options.rounds):
            raw.append(mysqlbinlog(server, folder, begin, end))
            took, roles["capture"] = backlog.capture(*end)
            captured.append(took)
            say(f"mysqlbinlog {raw[-1]:.2f} s, capture {took:.2f} s")
        peer = python_replication(server, begin, options.small // 10)
        say(f"writing {options.large:,} changes")
        write_large(server, options.large)
        changes = 0
        for _ in range(options.rounds):
            found = backlog.drain()
            drained.append(found.seconds)
            changes, roles["penstock"] = found.changes, found.roles
            say(f"drained {changes:,} changes in {found.seconds:.2f} s")
    limit, ours, rate = min(raw), min(captured), changes / min(drained)
    report(
        "mysql_drain",
        f"MySQL: {options.small:,} small transactions captured, {changes:,} changes drained, best of {options.rounds}",
        ("what", "seconds", "changes/s"),
        [
            ("mysqlbinlog --raw", limit, round(options.small / limit)),
            ("penstock, capture alone", ours, round(options.small / ours)),
            (f"python-mysql-replication, {peer.rows:,} rows", peer.seconds, round(peer.rate)),
            ("penstock, end to end", min(drained), round(rate)),
        ],
        options=options,
        results=[
            Result(
                "MySQL: capture of transactions of one row",
                f"{ours:.2f} s, {options.small / ours:,.0f} transactions/s",
                f"mysqlbinlog --raw {limit:.2f} s",
                limit / ours,
                "of mysqlbinlog's speed",
                MYSQL_CAPTURE,
            ),
            Result(
                "MySQL: capture of transactions of one row",
                f"{options.small / ours:,.0f} transactions/s",
                f"python-mysql-replication {peer.rate:,.0f}/s",
                options.small / ours / peer.rate,
                "× its speed",
            ),
            Result(
                "MySQL: drain, end to end",
                f"{min(drained):.2f} s",
                f"{changes:,} changes",
                rate,
                "changes/s",
                MYSQL_DRAIN,
            ),
        ],
        processes=roles,
        seconds={"mysqlbinlog": raw, "capture": captured, "penstock": drained},
    )


if __name__ == "__main__":
    main()

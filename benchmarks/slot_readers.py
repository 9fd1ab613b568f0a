"""Those that drain a slot and write no table: `pg_recvlogical`, which is the limit, and penstock's capture alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.changelog.log import ChangeLog
from penstock.demo.server import PostgresServer
from penstock.model.position import Position
from penstock.source.postgres.slot import lsn_text
from pipelines import write_pipeline
from watch import Usage, Watch

BOUND_SECONDS = 1800


def recvlogical(server: PostgresServer, slot: str, publication: str, end: Position) -> float:
    """Seconds that pg_recvlogical takes, from its start, to write what waits in the slot into a file."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        began = time.monotonic()
        subprocess.run(
            [
                *(str(server.binaries / "pg_recvlogical"), "--start", "--slot", slot, "--dbname", server.url()),
                *("--endpos", lsn_text(end), "--file", str(Path(folder) / "changes"), "--no-loop"),
                *("-o", "proto_version=1", "-o", f"publication_names={publication}"),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
            timeout=BOUND_SECONDS,
        )
        return time.monotonic() - began


@dataclass(frozen=True)
class Captured:
    seconds: float
    roles: dict[str, Usage]


def capture(server: PostgresServer, slot: str, publication: str, end: Position) -> Captured:
    """penstock's capture into a change log, from when it says `started` until all of it is durable. It frames, groups
    by table, checksums and fsyncs, which pg_recvlogical does not."""
    with tempfile.TemporaryDirectory(prefix="bench-") as text:
        source = {"type": "postgres", "url": server.url(), "publication": publication, "slot": slot}
        folder = Path(text)
        file = write_pipeline(folder, server.url(), source=source, log={"uri": str(folder / "log")})
        log = ChangeLog(str(folder / "log"))
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.runtime.capture.process", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        with Watch(process.pid) as watch:
            process.stdout.readline()
            began = time.monotonic()
            while (log.end() or 0) < end:
                if process.poll() is not None or time.monotonic() - began > BOUND_SECONDS:
                    raise SystemExit("capture did not reach the end of what waits in the slot")
                time.sleep(0.02)
            took = time.monotonic() - began
        process.terminate()
        process.communicate()
        return Captured(took, watch.roles)

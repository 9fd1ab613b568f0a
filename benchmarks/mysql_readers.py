"""A MySQL server with a backlog, and those that read it beside penstock: mysqlbinlog and python-mysql-replication."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.changelog.log import ChangeLog
from pipelines import Drained, run_once, write_pipeline
from watch import Usage, Watch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import server_dist
from mysql_server import PASSWORD, USER, MysqlServer, numbers

PEER = "mysql-replication==1.0.17"
BOUND_SECONDS = 1800
COLUMNS = (
    "id bigint primary key, customer int, name varchar(60), state char(10), price decimal(12,2), score double,"
    " made datetime(6), changed timestamp(3), kind enum('a','b','c'), note text"
)
VALUES = (
    "{0}, {0} % 1000, concat('name ', {0}), 'open', {0} / 7, {0} / 3, '2024-01-01' + interval {0} second, now(3), 'b',"
    " repeat('y', {0} % 40)"
)


@contextmanager
def mysql_server(folder: Path) -> Iterator[MysqlServer]:
    options = ["--sync-binlog=0", "--innodb-buffer-pool-size=512M", "--max-binlog-size=1G"]
    with MysqlServer(folder / "server", options) as server:
        # With MySQL's own default nobody gets in without TLS.
        server.execute(f"ALTER USER {USER}@'%' IDENTIFIED WITH mysql_native_password BY '{PASSWORD}'")
        yield server


def write_small(server: MysqlServer, transactions: int) -> None:
    """Insert rows into `small`, each in a transaction of its own."""
    server.execute(
        "USE shop",
        "DROP PROCEDURE IF EXISTS fill",
        "CREATE PROCEDURE fill(last int) BEGIN DECLARE i INT DEFAULT 0; WHILE i < last DO SET i = i + 1;"
        f" INSERT INTO small VALUES ({VALUES.format('i')}); END WHILE; END",
        f"CALL fill({transactions})",
    )


def write_large(server: MysqlServer, changes: int) -> None:
    """Insert, update and delete rows of `large`, some thousands in each transaction."""
    inserts, piece = changes * 6 // 10, 10_000
    statements = [
        f"INSERT INTO shop.large SELECT {VALUES.format(f'(seq + {at})')} FROM {numbers(min(piece, inserts - at))}"
        for at in range(0, inserts, piece)
    ]
    statements += [
        f"UPDATE shop.large SET score = score + 1 WHERE id BETWEEN {at + 1} AND {min(at + piece, changes * 35 // 100)}"
        for at in range(0, changes * 35 // 100, piece)
    ]
    statements += [f"DELETE FROM shop.large WHERE id > {inserts - changes // 20}"]
    server.execute(*statements)


def head(server: MysqlServer) -> tuple[str, int]:
    file, offset = server.rows("SHOW MASTER STATUS")[0][:2]
    return str(file), int(offset)


class Backlog:
    """A pipeline that has copied its tables while they were empty; each reading begins there."""

    def __init__(self, folder: Path, server: MysqlServer) -> None:
        self._work, self._before = folder / "work", folder / "before"
        url = server.url + "?ssl-mode=DISABLED"
        log = str(self._work / "log")
        self.file = write_pipeline(
            self._work,
            "",
            source={"type": "mysql", "url": url, "server_id": 4711},
            tables=[{"match": "shop.*"}],
            log={"uri": log},
        )
        self._log = ChangeLog(log)
        run_once(self.file)
        shutil.copytree(self._work, self._before)

    def _restore(self) -> None:
        shutil.rmtree(self._work)
        shutil.copytree(self._before, self._work)

    def drain(self) -> Drained:
        self._restore()
        return run_once(self.file)

    def capture(self, file: str, offset: int) -> tuple[float, dict[str, Usage]]:
        """Seconds from when capture says `started` until its log has everything before that place."""
        self._restore()
        end = int(file.rpartition(".")[2]) << 32 | offset
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.runtime.capture.process", str(self.file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        with Watch(process.pid) as watch:
            process.stdout.readline()
            began = time.monotonic()
            while (self._log.end() or 0) < end:
                if process.poll() is not None or time.monotonic() - began > BOUND_SECONDS:
                    raise SystemExit("capture did not reach the end of the backlog")
                time.sleep(0.02)
            took = time.monotonic() - began
        process.terminate()
        process.communicate()
        return took, watch.roles


def mysqlbinlog(server: MysqlServer, folder: Path, begin: tuple[str, int], end: tuple[str, int]) -> float:
    """Seconds that mysqlbinlog takes to write the same binlog into files, as it comes."""
    program = server_dist.MYSQL.folder() / "bin" / "mysqlbinlog"
    assert begin[0] == end[0], "the backlog lies in one file"
    command = [str(program), "--raw", "--read-from-remote-server", "--host=127.0.0.1", f"--port={server.port}"]
    command += [f"--user={USER}", "--ssl-mode=DISABLED", f"--start-position={begin[1]}", f"--result-file={folder}/raw-"]
    began = time.monotonic()
    environment = {**os.environ, "MYSQL_PWD": PASSWORD}
    subprocess.run([*command, begin[0]], check=True, stderr=subprocess.DEVNULL, env=environment)
    return time.monotonic() - began


@dataclass(frozen=True)
class Counted:
    seconds: float
    rows: int

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


_PEER = """
import sys, time
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent
port, user, password, file, offset, most = sys.argv[1:]
stream = BinLogStreamReader(
    connection_settings={"host": "127.0.0.1", "port": int(port), "user": user, "passwd": password},
    server_id=4712, log_file=file, log_pos=int(offset), resume_stream=True, only_events=[WriteRowsEvent],
)
began, rows = time.monotonic(), 0
for event in stream:
    rows += len(event.rows)
    if rows >= int(most):
        break
print(time.monotonic() - began, rows)
"""


def python_replication(server: MysqlServer, begin: tuple[str, int], rows: int) -> Counted:
    """How fast python-mysql-replication reads the beginning of the backlog, installed into a folder of its own."""
    folder = Path("build/mysql-replication").absolute()
    if not folder.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PEER]
        subprocess.run(pip, check=True)
    done: Any = subprocess.run(
        [sys.executable, "-c", _PEER, str(server.port), USER, PASSWORD, begin[0], str(begin[1]), str(rows)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    seconds, found = done.stdout.split()
    return Counted(float(seconds), int(found))

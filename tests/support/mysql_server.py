"""A MariaDB server for tests, in a folder of its own, on a free port; scripts/debian_mariadb.sh brings the program."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pymysql

SCRIPT = Path(__file__).parents[2] / "scripts" / "debian_mariadb.sh"
SCRIPTS = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
USER, PASSWORD = "penstock", "s3cret"


class MariadbServer:
    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.port = _free_port()
        self._program = subprocess.run([str(SCRIPT)], check=True, capture_output=True, text=True).stdout.strip()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MariadbServer:
        self.data.mkdir(parents=True)
        scripts = [Path("/usr/share/mysql") / name for name in SCRIPTS]
        sql = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
        made = subprocess.run(
            [self._program, "--no-defaults", "--bootstrap", "--user=root", f"--datadir={self.data}"],
            input=sql + "\n".join(script.read_text() for script in scripts),
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        self.start()
        self.execute(
            f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO {USER}@'%'",
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                self._program,
                "--no-defaults",
                "--user=root",
                f"--datadir={self.data}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                f"--socket={self.folder}/s",
                f"--pid-file={self.folder}/pid",
                f"--log-error={self.folder}/log",
                "--server-id=1",
                "--log-bin=binlog",
                "--binlog-format=ROW",
                "--binlog-row-image=FULL",
                "--binlog-row-metadata=FULL",
                "--innodb-buffer-pool-size=32M",
                "--innodb-flush-log-at-trx-commit=2",
            ]
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return
            except pymysql.Error:
                assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    @property
    def url(self) -> str:
        return f"mysql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/shop"

    def connect(self, database: str = "mysql") -> Any:
        return pymysql.connect(
            unix_socket=f"{self.folder}/s",
            user="root",
            database=database,
            autocommit=True,
            charset="utf8mb4",
        )

    def execute(self, *statements: str) -> None:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET time_zone = '+00:00'")
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

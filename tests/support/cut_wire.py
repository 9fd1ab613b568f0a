"""A wire between a client and a Postgres server that a test may cut: at once, or in place of the answer to COMMIT."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

_WRITES = b"FROM STDIN"  # COPY: the transaction brings rows
_COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"


@dataclass
class _Pair:
    client: socket.socket
    server: socket.socket
    writes: bool = False

    def end(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class CutWire:
    """Listens on a port of its own, and passes on what is sent either way."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._pairs: list[_Pair] = []
        self._lock = threading.Lock()
        self._to_lose = 0
        self.lost = 0  # answers
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_an_answer(self) -> None:
        """End the next connection whose transaction brought rows when the server says that it is committed."""
        with self._lock:
            self._to_lose += 1

    def cut(self) -> None:
        """End all connections now; new ones are let in."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.end()

    def close(self) -> None:
        self._listening.close()
        self.cut()

    def __enter__(self) -> CutWire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()
                continue
            pair = _Pair(client, server)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append(pair)
            threading.Thread(target=self._asks, args=(pair,), daemon=True).start()
            threading.Thread(target=self._answers, args=(pair,), daemon=True).start()

    def _asks(self, pair: _Pair) -> None:
        with suppress(OSError):
            while asked := pair.client.recv(1 << 16):
                pair.writes |= _WRITES in asked
                pair.server.sendall(asked)
        pair.end()

    def _answers(self, pair: _Pair) -> None:
        with suppress(OSError):
            while answered := pair.server.recv(1 << 16):
                if _COMMITTED in answered:
                    if pair.writes and self._loses():
                        break
                    pair.writes = False
                pair.client.sendall(answered)
        pair.end()

    def _loses(self) -> bool:
        with self._lock:
            if not self._to_lose:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True

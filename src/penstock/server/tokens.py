"""Tokens that clients sign in with: made here, shown once, kept as hashes in a file that only its owner may read.

A token has 256 random bits, so a plain SHA-256 of it cannot be searched for. The file also holds the key that signs
the cookies of the web page; removing a token ends its sessions. Used by `access.py` and `penstock tokens`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from penstock.errors import UsageError

PREFIX = "pst_"
SESSION_SECONDS = 12 * 3600


class Role(StrEnum):
    """What a token may do: look; act on tables and pipelines and read rows; also edit, stop and remove."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True)
class Holder:
    """Who a request comes from: the name of its token, and what that may do."""

    name: str
    role: Role


@dataclass(frozen=True)
class _Kept:
    name: str
    role: Role
    digest: str
    made: str


class TokenFile:
    """The tokens of one server. Read again when the file changes, so that `penstock tokens` acts at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._tokens: dict[str, _Kept] = {}
        self._key = b""

    def make_first(self) -> str | None:
        """Make the file with one admin token, and return that; None when there is a file.

        UsageError when others may read it.
        """
        if self.path.exists():
            self._read()
            return None
        token = self._new_token()
        first = _Kept("first", Role.ADMIN, _digest(token), _now())
        self._write({first.name: first}, secrets.token_bytes(32))
        return token

    def add(self, name: str, role: Role) -> str:
        """Make a token and return it: it cannot be had again."""
        self._read()
        if not name or not name.isidentifier():
            raise UsageError(f"{name!r} is no name for a token", "Use letters, digits and _")
        if name in self._tokens:
            raise UsageError(f"there is a token {name} already", f"Remove it first: penstock tokens remove {name}")
        token = self._new_token()
        self._write({**self._tokens, name: _Kept(name, role, _digest(token), _now())}, self._key)
        return token

    def remove(self, name: str) -> None:
        self._read()
        if name not in self._tokens:
            raise UsageError(f"there is no token {name}", f"There are {', '.join(self._tokens) or 'none'}")
        self._write({key: kept for key, kept in self._tokens.items() if key != name}, self._key)

    def listed(self) -> list[tuple[Holder, str]]:
        """Return every token's name and role, and when it was made."""
        self._read()
        return [(Holder(kept.name, kept.role), kept.made) for kept in self._tokens.values()]

    def holder(self, token: str) -> Holder | None:
        """Return whose token this is. Takes as long for a wrong token as for a right one."""
        self._refresh()
        given, found = _digest(token), None
        for kept in self._tokens.values():
            if _same(kept.digest, given):
                found = Holder(kept.name, kept.role)
        return found

    def session(self, holder: Holder, now: float | None = None) -> str:
        """Return the value of a cookie for somebody who has shown a token."""
        self._refresh()
        until = int((time.time() if now is None else now) + SESSION_SECONDS)
        said = f"{holder.name}.{until}"
        return f"{said}.{self._signed('session', said)}"

    def session_holder(self, cookie: str, now: float | None = None) -> Holder | None:
        """Return whose cookie this is; None when it is forged, has expired or its token was removed."""
        self._refresh()
        said, _, signature = cookie.rpartition(".")
        if not _same(self._signed("session", said), signature):
            return None
        name, _, until = said.rpartition(".")
        kept = self._tokens.get(name)
        if kept is None or int(until) < (time.time() if now is None else now):
            return None
        return Holder(kept.name, kept.role)

    def page_token(self, cookie: str) -> str:
        """Return what a page sends in a header with everything that it changes: no other site can know it."""
        return self._signed("page", cookie)

    def is_page_token(self, cookie: str, given: str) -> bool:
        return _same(self._signed("page", cookie), given)

    def _signed(self, purpose: str, text: str) -> str:
        kept = self._tokens.get(text.partition(".")[0])
        bound = kept.digest if kept is not None else ""  # a token made again under the same name is another one
        return hmac.new(self._key, f"{purpose}:{bound}:{text}".encode(), hashlib.sha256).hexdigest()

    def _refresh(self) -> None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._tokens, self._stamp = {}, None  # nobody may sign in
            return
        if (found.st_mtime_ns, found.st_ino) != self._stamp:
            self._read()

    def _read(self) -> None:
        try:
            found = self.path.stat()
            content = self.path.read_text()
        except FileNotFoundError:
            raise UsageError(
                f"there are no tokens at {self.path}", "`penstock serve` makes them at its first start"
            ) from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise UsageError(f"others may read the tokens at {self.path}", f"chmod 600 {self.path}")
        try:
            written: Mapping[str, Any] = json.loads(content)
            tokens = {
                one["name"]: _Kept(one["name"], Role(one["role"]), one["sha256"], one["made"])
                for one in written["tokens"]
            }
            key = bytes.fromhex(written["session_key"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.path} holds no tokens that can be read", "Move it away: the next start makes new ones"
            ) from error
        self._tokens, self._key = tokens, key
        self._stamp = found.st_mtime_ns, found.st_ino

    def _write(self, tokens: Mapping[str, _Kept], key: bytes) -> None:
        """Replace the file in one step. It is never readable by others, not even for a moment."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {
            "session_key": key.hex(),
            "tokens": [
                {"name": one.name, "role": one.role.value, "sha256": one.digest, "made": one.made}
                for one in tokens.values()
            ],
        }
        fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as stream:
                json.dump(content, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(self.path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        self._read()

    @staticmethod
    def _new_token() -> str:
        return PREFIX + secrets.token_urlsafe(32)


def _same(one: str, other: str) -> bool:
    """Compare in constant time. What a client sends may be any text, and `compare_digest` of str takes ASCII only."""
    return hmac.compare_digest(one.encode(errors="surrogatepass"), other.encode(errors="surrogatepass"))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""What the DDL trigger (ddl_trigger.py) says in the stream, if it proves that it is the trigger.

Any role may write logical messages of any prefix and content, so a message is believed only if its signature is right
and it names the transaction that it came in. Others are counted, reported at most once per minute, and otherwise
ignored. Nothing in a message ends capture.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

from penstock.source.postgres.connect import Connection
from penstock.source.postgres.ddl_trigger import PREFIX, read_secret
from penstock.source.postgres.discover import stamp_of
from penstock.source.postgres.pgoutput import Bytes, read_logical_message
from penstock.source.postgres.relation_schema import RelationSchemas, ToldColumn, ToldStructure

MOST_BYTES = 1 << 20  # a table of 1,600 columns takes 200 kB
SIGNATURE_BYTES = 64
REPORT_SECONDS = 60.0
READ_AGAIN_SECONDS = 10.0


class DdlMessages:
    def __init__(
        self, connection: Connection, schemas: RelationSchemas, report: Callable[[dict[str, object]], None]
    ) -> None:
        self._connection, self._schemas, self._report = connection, schemas, report
        self._secret: bytes | None = None
        self._read_at = self._reported_at = float("-inf")
        self._ignored = 0

    def take(self, message: Bytes, xid: int | None) -> None:
        """Read one logical message, which came in transaction `xid` (None: in none)."""
        content = read_logical_message(message, PREFIX.encode())
        if not content:
            return
        told = self._proven(content) if len(content) <= MOST_BYTES and xid is not None else None
        structure = None if told is None else _structure(told, xid)
        if structure is None:
            self._ignore()
        else:
            self._schemas.told(structure)

    def _proven(self, content: bytes) -> bytes | None:
        """Return the signed text, if the signature is right. The secret may be another one than when it was read."""
        signature, told = content[:SIGNATURE_BYTES], content[SIGNATURE_BYTES:]
        if self._secret is not None and is_signed(self._secret, signature, told):
            return told
        if time.monotonic() - self._read_at < READ_AGAIN_SECONDS:
            return None
        self._read_at, self._secret = time.monotonic(), read_secret(self._connection)
        return told if self._secret is not None and is_signed(self._secret, signature, told) else None

    def _ignore(self) -> None:
        self._ignored += 1
        if time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = time.monotonic()
            self._report({"event": "ignored", "messages": self._ignored, "trusted": self._secret is not None})


def signature_of(secret: bytes, told: bytes) -> bytes:
    return hashlib.sha256(secret + hashlib.sha256(secret + told).digest()).hexdigest().encode()


def is_signed(secret: bytes, signature: bytes, told: bytes) -> bool:
    return hmac.compare_digest(signature, signature_of(secret, told))


def _structure(told: bytes, xid: int | None) -> ToldStructure | None:
    """None when it is of another transaction, or not as this version of the trigger writes it."""
    try:
        said: Any = json.loads(told)
        if said["xid"] != xid:
            return None
        stamps = [str(item) for item in said["stamps"] or ()]
        return ToldStructure(
            relation_id=int(said["relation"]),
            columns=tuple(
                ToldColumn(int(number), str(name), int(oid), int(modifier))
                for number, name, oid, modifier in said["columns"] or ()
            ),
            storage=int(said["storage"]),
            stamp=stamp_of(stamps),
            numbered=len(stamps),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None

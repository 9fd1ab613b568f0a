"""A schema registry with Confluent's HTTP interface: a schema goes in, the number that records carry comes out.

Numbers are kept for the life of the process, so events under known schemas go on while the registry is away. A schema
that the registry has not got yet has to wait for it. Executors ask, each process once per schema and subject.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pyarrow as pa

from penstock.errors import DestinationUnreachable, SchemaRefused
from penstock.render.avro import Schema
from penstock.render.format import Registry

MAGIC = b"\x00"
_MEDIA = "application/vnd.schemaregistry.v1+json"
_KNOWN: dict[tuple[str, str, str], int] = {}
_ASKING = threading.Lock()


def framed(number: int) -> bytes:
    """Return what stands before a record that is under the schema with this number."""
    return MAGIC + number.to_bytes(4, "big")


def schema_number(registry: Registry, subject: str, schema: Schema) -> int:
    """Return the number of a schema under a subject, registering it if need be.

    DestinationUnreachable while the registry cannot be asked; SchemaRefused when it does not take the schema."""
    text = json.dumps(schema, separators=(",", ":"))
    known = _KNOWN.get((registry.url, subject, text))
    if known is None:
        with _ASKING:
            known = _KNOWN[registry.url, subject, text] = _register(registry, subject, text)
    return known


def prefixes(
    registry: Registry, topics: pa.DictionaryArray, schema: Schema, record_name: str, part: str
) -> pa.Array | bytes:
    """Return what stands before the records: the same for all, or by topic. `part` is `key` or `value`."""
    names = topics.dictionary.to_pylist()
    if registry.subject == "record_name":
        return framed(schema_number(registry, record_name, schema))
    subjects = [f"{name}-{part}" if registry.subject == "topic_name" else f"{name}-{record_name}" for name in names]
    made = [framed(schema_number(registry, subject, schema)) for subject in subjects]
    return made[0] if len(made) == 1 else pa.array(made, pa.binary()).take(topics.indices)


def _register(registry: Registry, subject: str, schema: str) -> int:
    path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
    request = urllib.request.Request(
        registry.url.rstrip("/") + path, json.dumps({"schema": schema, "schemaType": "AVRO"}).encode(), method="POST"
    )
    request.add_header("Content-Type", _MEDIA)
    request.add_header("Accept", _MEDIA)
    if registry.username:
        secret = base64.b64encode(f"{registry.username}:{registry.password}".encode()).decode()
        request.add_header("Authorization", f"Basic {secret}")
    where = f"the schema registry {_shown(registry.url)}"
    try:
        with urllib.request.urlopen(request, timeout=registry.timeout) as answer:
            number = json.loads(answer.read())["id"]
    except urllib.error.HTTPError as error:
        reason = _reason(error)
        if error.code in (409, 422):
            raise SchemaRefused(
                f"{where} refuses the schema of subject {subject}: {reason}",
                "Change the subject's compatibility there, or give the stream another topic; then `penstock retry`",
            ) from None
        raise DestinationUnreachable(
            f"{where} answered {error.code} for subject {subject}: {reason}",
            "Check encoding.registry, and its username and password",
        ) from None
    except (OSError, ValueError, KeyError) as error:
        said = getattr(error, "reason", error)
        raise DestinationUnreachable(
            f"{where} does not answer: {said}", "Check encoding.registry and that it can be reached"
        ) from None
    return int(number)


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        content: dict[str, Any] = json.loads(error.read())
    except ValueError:
        return str(error.reason)
    return str(content.get("message", error.reason)).splitlines()[0][:300]


def _shown(url: str) -> str:
    """Return the address without what may be a password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

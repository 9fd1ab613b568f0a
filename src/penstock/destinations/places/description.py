"""Say in a file which stream a folder belongs to: written once, before anything else, and never changed.

stream.json        source, shards, history of the change log, start, and a random id of the stream
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

from penstock.destinations.key_layout import Ordering
from penstock.destinations.places.folder import Folder
from penstock.destinations.stream_contract import StreamId
from penstock.errors import StreamBroken
from penstock.model.place import Place

FORMAT = 1
NAME = "stream.json"


@dataclass(frozen=True)
class Description:
    format: int
    source: str
    history: str
    shards: int
    start: Place
    ordering: Ordering = "key"
    id: str = ""  # "" in streams of files that are older than such ids


def describe(folder: Folder, stream: StreamId, shards: int, ordering: Ordering, *, elsewhere: str) -> Description:
    """Create the description, or read the one that is there; StreamBroken if that is of another stream.

    `elsewhere` says how to begin a new stream, in words that follow "or"."""
    folder.make()
    wanted = Description(FORMAT, stream.source, stream.history, shards, stream.start, ordering, uuid.uuid4().hex)
    known = described(folder)
    if known is None:
        content = json.dumps(asdict(wanted)).encode()
        if folder.has_links:
            folder.create(NAME, content)
        else:
            folder.write(NAME, content)
        known = described(folder) or wanted
    _require_same(folder, known, wanted, elsewhere)
    return known


def described(folder: Folder) -> Description | None:
    """Return what the folder's description says, or None without one."""
    content = folder.read(NAME)
    if content is None:
        return None
    try:
        return Description(**json.loads(content))
    except (ValueError, TypeError) as error:
        raise StreamBroken(f"{folder}/{NAME} cannot be read: {error}", "Put it back from a copy") from error


def required(folder: Folder) -> Description:
    known = described(folder)
    if known is None:
        raise StreamBroken(f"{folder}/{NAME} is missing", "Put it back, or remove the folder")
    return known


def shard_name(shard: int) -> str:
    return f"{shard:04d}"


def _require_same(folder: Folder, known: Description, wanted: Description, elsewhere: str) -> None:
    if known.format != FORMAT:
        raise StreamBroken(
            f"{folder} has format {known.format}, and this penstock writes format {FORMAT}",
            f"Use the penstock that wrote it, or {elsewhere}",
        )
    if known.source != wanted.source:
        raise StreamBroken(f"{folder} is the stream of source {known.source}", elsewhere.capitalize())
    if known.shards != wanted.shards:
        raise StreamBroken(
            f"{folder} has {known.shards} shards, and the file says `shards: {wanted.shards}`: keys would move "
            "between shards and lose their order",
            f"Set `shards` to {known.shards}, or {elsewhere}",
        )
    if known.ordering != wanted.ordering:
        raise StreamBroken(
            f"{folder} was made with `ordering: {known.ordering}`, and the file says `ordering: {wanted.ordering}`: "
            "events would move between shards and lose their order",
            f"Set `ordering` to {known.ordering}, or {elsewhere}",
        )
    if known.history != wanted.history:
        raise StreamBroken(
            f"{folder} was published from another change log than the present one: where it ended means nothing here",
            f"To start a new stream, {elsewhere} or remove the folder",
        )

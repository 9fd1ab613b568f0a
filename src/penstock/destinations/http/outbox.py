"""Records that wait to be sent: an Arrow file per publication, one record batch per request.

What a request holds is decided when the file is written, and the file is durable before anything of it is sent. So a
request that is sent again, by whoever, after whatever crash, is the same to the byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.places.folder import Folder, storing
from penstock.destinations.stream_contract import Records
from penstock.errors import StreamBroken

SCHEMA = pa.schema([("place", pa.string()), ("key", pa.binary()), ("value", pa.binary())])
MOST_BYTES = 4 << 20  # of a request, unless a single event is larger


@dataclass(frozen=True)
class Written:
    rows: int
    bytes: int


def write(folder: Folder, name: str, records: Iterable[Records], batch: int, delivered: Collection[bytes]) -> Written:
    """Write the records, but for those that are delivered, and return how many there were."""
    rows = size = 0
    with folder.writing(name) as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for some in records:
            columns = [some.places.cast(pa.string()), some.keys.cast(pa.binary()), some.values.cast(pa.binary())]
            whole = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            if delivered:
                left = [digest not in delivered for digest in digests(whole)]
                whole = whole.filter(pa.array(left, pa.bool_()))
            for request in _requests(whole, batch):
                writer.write_batch(request)
            rows += whole.num_rows
            size += int(pc.sum(pc.binary_length(whole.column("value"))).as_py() or 0)
    return Written(rows, size)


@contextmanager
def requests(folder: Folder, name: str) -> Iterator[Iterator[pa.RecordBatch]]:
    """Give the requests of a file, in order, one in memory at a time. StreamBroken if it is not there."""
    with storing(folder):
        try:
            opened = folder.reading(name)
        except FileNotFoundError:
            raise StreamBroken(
                f"{folder}/{name} is missing: it holds events that were being sent",
                "Put it back, or give the destination another `name` to start a new stream",
            ) from None
        with opened as file:
            reader = pa.ipc.open_file(file)
            yield (reader.get_batch(number) for number in range(reader.num_record_batches))


def digests(batch: pa.RecordBatch) -> list[bytes]:
    """Return what distinguishes one event from all others: a digest of its place and its content."""
    pairs = zip(batch.column("place").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return [hashlib.blake2b((value or b"") + place.encode(), digest_size=16).digest() for place, value in pairs]


def _requests(whole: pa.RecordBatch, batch: int) -> Iterator[pa.RecordBatch]:
    sizes = np.asarray(pc.fill_null(pc.binary_length(whole.column("value")), 0), np.int64)
    ends = np.cumsum(sizes)
    first = 0
    while first < whole.num_rows:
        limit = (ends[first - 1] if first else 0) + MOST_BYTES
        count = max(1, min(batch, int(np.searchsorted(ends, limit, side="right")) - first))
        yield whole.slice(first, count)
        first += count

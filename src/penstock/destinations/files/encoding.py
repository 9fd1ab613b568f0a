"""How records are written into a file: JSON lines, plain or compressed, or Parquet; known by the end of its name.

    .jsonl  .jsonl.gz  .jsonl.zst  .parquet

Several finished files are joined into one without decoding a record: lines one behind another (compressed files may
follow one another by their formats' definition), row groups of Parquet one by one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.destinations.places.folder import Folder
from penstock.destinations.stream_contract import Records

Format = Literal["jsonl", "parquet"]
Compression = Literal["none", "gzip", "zstd"]
_ENDINGS: dict[Compression, str] = {"none": ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
_PARQUET = ".parquet"
ENDINGS = (*_ENDINGS.values(), _PARQUET)
SCHEMA = pa.schema([("place", pa.string()), ("topic", pa.string()), ("key", pa.string()), ("value", pa.string())])
COPIED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Encoding:
    """`compression` of Parquet is that of its pages."""

    format: Format = "jsonl"
    compression: Compression = "none"

    @property
    def ending(self) -> str:
        return _PARQUET if self.format == "parquet" else _ENDINGS[self.compression]

    def write(self, sink: Any, records: Iterable[Records]) -> int:
        """Write a file, and return how many records it has."""
        if self.format == "parquet":
            return self._write_parquet(sink, records)
        if self.compression == "none":
            return sum(_write_lines(sink, some) for some in records)
        with pa.CompressedOutputStream(pa.PythonFile(_Kept(sink), "w"), self.compression) as compressed:
            return sum(_write_lines(compressed, some) for some in records)

    def join(self, folder: Folder, names: Sequence[str], sink: Any) -> None:
        """Write the records of several finished files into one."""
        if self.format == "parquet":
            with pq.ParquetWriter(sink, SCHEMA, compression=self.compression) as writer:
                for name in names:
                    with folder.reading(name) as file, pq.ParquetFile(file) as part:
                        for number in range(part.num_row_groups):
                            writer.write_table(part.read_row_group(number))
            return
        for name in names:
            with folder.reading(name) as file:
                shutil.copyfileobj(file, sink, COPIED_AT_ONCE)

    def _write_parquet(self, sink: Any, records: Iterable[Records]) -> int:
        count = 0
        with pq.ParquetWriter(sink, SCHEMA, compression=self.compression) as writer:
            for some in records:
                columns = [some.places, some.topics, some.keys, some.values]
                arrays = [column.cast(pa.string()) for column in columns]
                writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
                count += len(some)
        return count


def encoding_of(name: str) -> Encoding:
    """Return how a file of this name is written, as far as joining and reading it goes."""
    if name.endswith(_PARQUET):
        return Encoding("parquet", "zstd")
    return next(Encoding("jsonl", kind) for kind, ending in _ENDINGS.items() if name.endswith(ending))


class _Kept:
    """A stream that its user does not close."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def close(self) -> None:
        self._sink.flush()


def _write_lines(sink: Any, records: Records) -> int:
    """Write one line per record: joined, they lie behind one another in one buffer."""
    if not len(records):
        return 0
    nothing, line_end = pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary())
    lines = pc.binary_join_element_wise(records.values.cast(pa.binary()), nothing, line_end)
    size = int(pc.sum(pc.binary_length(lines)).as_py())
    sink.write(memoryview(lines.buffers()[2])[:size])
    return len(records)

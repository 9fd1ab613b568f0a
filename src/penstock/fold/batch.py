"""The raw changes of one table in a batch, as every fold begins: those that count, their readers and their order.

Changes may be under several versions of the table's structure: each slice is read under its own, and `aligned` brings
its columns to where the newest version has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.dialect import read
from penstock.decode.reader import Images, Mask, Places, RowReader
from penstock.decode.rescue import Into
from penstock.decode.schema import arrow_schema
from penstock.fold.evolution import places
from penstock.model.change import TRUNCATE, RawChanges
from penstock.model.position import Position
from penstock.model.table import TableSchema


@dataclass(frozen=True)
class Batch:
    """`schema` is the structure of the outcome. `changes` are slices, at least one; only a single one may be empty."""

    changes: Sequence[RawChanges]
    schema: TableSchema

    @classmethod
    def of(
        cls,
        changes: Iterable[RawChanges],
        *,
        position: Position,
        until: Position | None,
        schema: TableSchema | None = None,
    ) -> Batch:
        """Take the changes with position <= commit_position < until. Without `schema` it is that of the last change.

        ValueError when there is no slice: an empty one will do."""
        given = [RawChanges(one.schema, within(one.batch, position, until)) for one in changes]
        if not given:
            raise ValueError("a fold needs at least one slice: an empty one will do")
        counted = [one for one in given if one.batch.num_rows] or given[-1:]
        return cls(counted, schema or counted[-1].schema)

    @cached_property
    def readers(self) -> list[RowReader]:
        """One per slice."""
        return [read(one) for one in self.changes]

    @cached_property
    def ranks(self) -> list[Places]:
        """Each row's place in the stream, per slice.

        Slices mostly follow one another; those of two schema versions may interleave.
        """
        commit_position = np.concatenate([reader.commit_position for reader in self.readers])
        ordinal = np.concatenate([reader.ordinal for reader in self.readers])
        rank = np.arange(len(commit_position))
        same = commit_position[1:] == commit_position[:-1]
        if not np.all((commit_position[1:] > commit_position[:-1]) | (same & (ordinal[1:] > ordinal[:-1]))):
            rank[np.lexsort((ordinal, commit_position))] = np.arange(len(commit_position))
        return np.split(rank, np.cumsum([len(reader) for reader in self.readers])[:-1])

    @property
    def cleared(self) -> int:
        """The place of the last truncate; -1 if there is none."""
        pairs = zip(self.readers, self.ranks, strict=True)
        return max(int(rank[reader.op == TRUNCATE].max(initial=-1)) for reader, rank in pairs)

    @property
    def last_commit_time(self) -> int:
        """µs; 0 without changes."""
        times = (pc.max(one.batch.column("commit_time").cast(pa.int64())).as_py() for one in self.changes)
        return max(int(time or 0) for time in times)


def within(batch: pa.RecordBatch, position: Position, until: Position | None) -> pa.RecordBatch:
    commit_position: npt.NDArray[np.uint64] = np.asarray(batch.column("commit_position"))
    wanted = commit_position >= np.uint64(position)
    if until is not None:
        wanted &= commit_position < np.uint64(until)
    return batch if wanted.all() else batch.filter(pa.array(wanted))


def share_rows(rows: Sequence[Places], bucket: int, buckets: int) -> list[Places]:
    """Share rows without a key out by their number."""
    counts = [len(chosen) for chosen in rows]
    total = sum(counts)
    low, high = total * bucket // buckets, total * (bucket + 1) // buckets
    begins = np.cumsum([0, *counts[:-1]]).tolist()
    return [chosen[max(low - begin, 0) : max(high - begin, 0)] for chosen, begin in zip(rows, begins, strict=True)]


def aligned(
    reader: RowReader, images: Images, schema: TableSchema, into: Callable[[str], Into | None]
) -> Iterator[tuple[pa.Array, Mask | None]]:
    """Decode each column of `schema`, which may be another version than the reader's.

    Each comes with the cells that were not sent, None if all were. A column that the reader's version lacks is null.
    `into` says where cells of a column go that do not fit.
    """
    for field, place in zip(arrow_schema(schema), places(reader.schema, schema), strict=True):
        if place is None:
            yield pa.nulls(len(images.rows), field.type), None
            continue
        decoded = images.values(place, into(field.name))
        unsent = images.unsent(place)
        yield decoded if decoded.type == field.type else decoded.cast(field.type), unsent if unsent.any() else None

"""One worker's part of many small batches, in this process: the real task over the real files of a table, without Java.

What the driver would commit is kept as a list of files; files are merged as compaction would merge them, and segments
of the log are removed once they are applied, so that a worker that holds on to any of them shows it.
"""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import pyarrow as pa

from loop_bench import addressed, schema
from penstock.changelog.log import ChangeLog
from penstock.changelog.segment import SliceRows
from penstock.changelog.writer import SegmentWriter
from penstock.destinations.iceberg.columns import rescued_column, rescued_schema
from penstock.destinations.iceberg.data_files import ICEBERG
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.compaction import MergeData, merge
from penstock.destinations.lake.data_files import WrittenFile
from penstock.destinations.lake.key_index import IndexedFile, KeyIndex
from penstock.destinations.lake.upsert_plan import LakePart, UpsertPlan
from penstock.fold.evolution import follow
from penstock.model.feed import Feed
from penstock.model.type_map import WIDEST
from penstock.runtime.apply.batch_planner import TableWork
from penstock.runtime.apply.task import apply, tasks_for
from pgoutput_messages import INT8, TEXT, Change, insert, raw_changes, update

ITEMS = schema("items", 7, id=INT8, name=TEXT, note=TEXT)
KEYS = 2000
CHANGES = 20  # per batch
MERGED_AT = 10  # files


class Worker:
    """Applies one batch after the other to one table, as a Spark worker does."""

    def __init__(self, folder: Path) -> None:
        self.log = str(folder / "log")
        self._log = ChangeLog(self.log)
        self._writer = SegmentWriter(self._log)
        self._writer.__enter__()
        self._writer.begin(100, "1")
        (folder / "data").mkdir()
        self._folder = str(folder / "data")
        types = (pa.int64(), pa.string(), pa.string())
        self._columns = tuple(
            LakeColumn(number, column.name, type, required=False)
            for number, (column, type) in enumerate(zip(ITEMS.columns, types, strict=True), 1)
        )
        rescued = rescued_column(rescued_schema())
        assert rescued is not None
        self._rescued = rescued
        self._index = KeyIndex(folder / "index", ITEMS.key)
        self._data: list[IndexedFile] = []
        self._deletes: list[str] = []
        self._position, self._sequence = 100, 0

    def apply_batches(self, count: int) -> None:
        for _ in range(count):
            self._apply()
            if len(self._data) >= MERGED_AT:
                self._merge()

    def close(self) -> None:
        self._writer.__exit__(None, None, None)

    def _apply(self) -> None:
        self._sequence += 1
        begin, number = self._position, self._sequence * CHANGES
        cells = [(str((number + one) % KEYS), f"name {number + one}", "x" * 50) for one in range(CHANGES)]
        sent = insert if number < KEYS else update
        changes = [Change(begin + 10 + place, place, addressed(sent(*row), ITEMS)) for place, row in enumerate(cells)]
        end = begin + 100
        self._writer.append(end, [SliceRows(ITEMS, raw_changes(ITEMS, changes).batch, 0)])
        (name,) = self._log.segments(after=begin)
        (part,) = self._log.slices(name)
        work = TableWork(
            Feed.clone(ITEMS.table), [(name.text, part.table_schema.fingerprint)], [part.table_schema], part.slice.bytes
        )
        tasks = tasks_for(self._log, work, begin, self._plan(), follow(ITEMS, work.versions, WIDEST))
        (result,) = [apply(pickle.loads(pickle.dumps(task))) for task in tasks]
        assert result.error is None, result.error
        written = result.part
        assert isinstance(written, LakePart)
        self._data += [IndexedFile(file.path, file.records, self._sequence) for file in written.added]
        self._deletes += [file.path for file in written.files if file not in written.added]
        self._log.remove(name)
        self._position = end

    def _plan(self) -> UpsertPlan:
        return UpsertPlan(
            table_format=ICEBERG,
            target=ITEMS.table,
            source="shop",
            position=self._position,
            metadata="",
            folder=self._folder,
            columns=self._columns,
            rescued=self._rescued,
            index=self._index,
            files=tuple(self._data),
            delete_files=tuple(self._deletes),
        )

    def _merge(self) -> None:
        files, deletes = tuple(file.path for file in self._data), tuple(self._deletes)
        task = MergeData(
            table_format=ICEBERG,
            target=ITEMS.table,
            folder=self._folder,
            columns=self._columns,
            index=self._index,
            files=files,
            delete_files=deletes,
            weight=1,
        )
        written: WrittenFile | None = merge(pickle.loads(pickle.dumps(task)))
        assert written is not None
        self._index.remove(files)
        for path in (*files, *deletes):
            Path(path).unlink()
        self._data, self._deletes = [IndexedFile(written.path, written.records, self._sequence)], []


def resident() -> int:
    """Bytes of memory that this process holds, without what Arrow's allocator keeps for later."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096

"""Which files are merged: enough of one size, into large ones, and no more at once than batches can wait for."""

from __future__ import annotations

from penstock.destinations.lake.compaction_choice import LARGE, MOST_AT_ONCE, Choice, choose
from penstock.destinations.lake.compaction_tasks import takes_long
from penstock.destinations.lake.file_list import LiveFile, TableState

MIB = 1 << 20


def data_file(number: int, size: int) -> LiveFile:
    return LiveFile(f"data/{number}.parquet", 1000, size, 7, "data", 0)


def state(files: list[LiveFile], deletes: tuple[LiveFile, ...] = ()) -> TableState:
    return TableState("metadata", 1, 7, 1, tuple(files), deletes)


def test_files_of_a_copy_become_large_ones_little_by_little() -> None:
    files = [data_file(number, 15 * MIB) for number in range(60)]
    calls = 0
    while choice := choose(state(files), 0, 8):
        calls += 1
        assert choice.groups
        merged = [sum(file.size for file in group) for group in choice.groups]
        assert all(size >= LARGE for size in merged[:-1])
        assert sum(merged) < MOST_AT_ONCE + 2 * LARGE
        gone = {file.path for file in choice.data}
        files = [file for file in files if file.path not in gone]
        files += [data_file(1000 * calls + number, size) for number, size in enumerate(merged)]
    assert calls > 5
    assert len(files) <= 60 / 3 + 8


def test_files_with_many_dead_rows_are_rewritten_little_by_little() -> None:
    files = [data_file(number, 30 * MIB) for number in range(6)]
    hits = {file.path: 500 for file in files}
    delete = LiveFile("data/deletes.parquet", 3000, MIB, 8, "position-deletes", 0, hits)
    assert [len(group) for group in choose(state(files, (delete,)), 0, 8).groups] == [1, 1, 1]


def test_large_files_are_left_alone() -> None:
    assert not choose(state([data_file(number, LARGE) for number in range(50)]), 0, 8)


def test_batches_wait_only_for_few_bytes_of_few_files_that_are_near() -> None:
    def many(files: int, size: int) -> Choice:
        return Choice((tuple(data_file(number, size) for number in range(files)),), ())

    assert not takes_long(many(8, 100 << 10), is_local=True)
    assert takes_long(many(8, 200 << 10), is_local=True)
    assert takes_long(many(100, 1 << 10), is_local=True)
    assert takes_long(many(8, 1 << 10), is_local=False)

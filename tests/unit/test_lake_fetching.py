"""Large values that an UPDATE left unsent are read from the lake's files in pieces, without Java or Spark."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.decode.schema import arrow_schema
from penstock.destinations.iceberg.columns import coming_rescued_column
from penstock.destinations.iceberg.data_files import ICEBERG
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.copy_plan import LakeCopyPlan
from penstock.destinations.lake.fetching import PIECE_BYTES
from penstock.destinations.lake.history_files import kind_of
from penstock.destinations.lake.history_plan import HistoryPlan
from penstock.destinations.lake.key_index import IndexedFile, KeyIndex
from penstock.destinations.lake.upsert_plan import LakePart, UpsertPlan, as_one_age
from penstock.fold.clone import fold_clone
from penstock.fold.history import fold_history
from penstock.fold.keys import encode_keys
from penstock.fold.layout import Layout
from penstock.fold.net_effect import NetEffect
from penstock.model.feed import Period
from penstock.model.table import TableId
from pgoutput_messages import INT8, TEXT, UNSENT, Stream, delete, insert, table_schema, update

SCHEMA = table_schema({"id": INT8, "note": TEXT, "photo": TEXT, "scan": TEXT})
TARGET = TableId("public", "things")
COLUMNS = tuple(
    LakeColumn(number, field.name, field.type, not field.nullable)
    for number, field in enumerate(arrow_schema(SCHEMA), start=1)
)
PIECE = 20_000  # bytes: a few rows
MOST_MEMORY = 800 << 20  # with Python, Arrow, the file that is read and the row group that is written


def photo(number: int, size: int = 2000) -> str:
    return random.Random(number).randbytes(size // 2).hex()


def base(folder: Path, rows: Iterator[dict[str, object]], files: int) -> list[LakePart]:
    """A copy of the rows, in so many files."""
    index = KeyIndex(folder / "index", ("id",))
    copy = LakeCopyPlan(
        table_format=ICEBERG,
        target=TARGET,
        folder=str(folder),
        columns=COLUMNS,
        rescued=coming_rescued_column(9),
        index=index,
    )
    each = list(rows)
    return [
        copy.write_rows([pa.Table.from_pylist(each[number::files], schema=arrow_schema(SCHEMA))])
        for number in range(files)
    ]


def over(folder: Path, parts: list[LakePart], piece_bytes: int) -> UpsertPlan:
    files, deletes = as_one_age(parts)
    return UpsertPlan(
        table_format=ICEBERG,
        target=TARGET,
        source="shop",
        position=100,
        metadata="",
        folder=str(folder),
        columns=COLUMNS,
        rescued=coming_rescued_column(9),
        index=KeyIndex(folder / "index", ("id",)),
        files=files,
        delete_files=deletes,
        piece_bytes=piece_bytes,
    )


def net_of(stream: Stream) -> NetEffect:
    return fold_clone([stream.raw(SCHEMA)], position=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_cells_that_were_not_sent_are_fetched_in_pieces_and_land_in_their_rows(folder: Path) -> None:
    parts = base(folder, ({"id": n, "note": "old", "photo": photo(n), "scan": photo(-n)} for n in range(300)), files=3)
    order = list(range(300))
    random.Random(7).shuffle(order)
    stream = Stream().transaction(
        *(update(str(n), "new", UNSENT, UNSENT if n % 3 else "sent") for n in order if n % 10),
        *(insert(str(n), "inserted", "p", "s") for n in range(1000, 1010)),
        update("5000", "unknown", UNSENT, "sent"),
        update("7000", "moved", UNSENT, UNSENT, key=("0", None, None, None)),
    )
    net = net_of(stream)
    plan = over(folder, parts, PIECE)
    part = plan.write(net)
    assert part.data is not None
    written = pq.read_table(part.data.path)
    rows = {row["id"]: (row["note"], row["photo"], row["scan"]) for row in written.to_pylist()}
    expected: dict[int, tuple[str, str | None, str]] = {
        n: ("new", photo(n), photo(-n) if n % 3 else "sent") for n in range(300) if n % 10
    }
    expected |= dict.fromkeys(range(1000, 1010), ("inserted", "p", "s"))
    expected |= {5000: ("unknown", None, "sent"), 7000: ("moved", photo(0), photo(0))}
    assert rows == expected
    assert part.unresolved == 1
    assert [net.upserts["id"][row].as_py() for row in part.unresolved_rows] == [5000]
    assert part.fetched == 270 + 180 + 2
    found = plan.index.locate(
        encode_keys([written["id"]]),
        [IndexedFile(part.data.path, part.data.records, 1)],
        lambda file: pytest.fail("no sidecar"),
    )
    assert found.rows[found.keys.argsort()].tolist() == list(range(len(rows))), "the sidecar has another order"


def test_a_value_that_is_hidden_in_a_dictionary_does_not_make_a_piece_large(folder: Path) -> None:
    parts = base(folder, ({"id": n, "note": "old", "photo": photo(n % 3), "scan": None} for n in range(2000)), files=1)
    plan = over(folder, parts, PIECE)
    stream = Stream().transaction(*(update(str(n), "new", UNSENT, None) for n in range(2000)))
    net = net_of(stream)
    pieces = list(plan.pieces(net))
    assert max(piece.upserts.nbytes for piece in pieces[1:]) < 3 * PIECE
    assert sum(len(piece.rows) for piece in pieces) == 2000
    for piece in pieces:
        for row in piece.upserts.to_pylist():
            assert row["photo"] == photo(row["id"] % 3)


def history(folder: Path, parts: list[LakePart], piece_bytes: int) -> HistoryPlan:
    layout = Layout(Period())
    around = tuple(
        LakeColumn(number, field.name, field.type, required=False)
        for number, field in enumerate(layout.around, start=5)
    )
    added = [(age, file) for age, part in enumerate(parts) for file in part.added]
    opened, ended = (
        tuple(IndexedFile(file.path, file.records, age) for age, file in added if kind_of(file.path) == kind)
        for kind in ("open", "ended")
    )
    return HistoryPlan(
        table_format=ICEBERG,
        target=TARGET,
        source="shop",
        position=100,
        metadata="",
        folder=str(folder),
        columns=COLUMNS,
        rescued=coming_rescued_column(9),
        index=KeyIndex(folder / "index", ("id",)),
        files=opened,
        delete_files=tuple(part.delete.path for part in parts if part.delete is not None),
        layout=layout,
        around=around,
        ended_files=ended,
        piece_bytes=piece_bytes,
    )


def versions_in(parts: list[LakePart]) -> list[tuple[object, ...]]:
    """All versions of the table that the parts make, in order."""
    files = [file.path for part in parts for file in part.added]
    dead = ICEBERG.deleted_rows([part.delete.path for part in parts if part.delete is not None], files)
    found = []
    for path in files:
        gone = set(dead.get(path, pa.array([])).tolist()) if path in dead else set()
        for number, row in enumerate(pq.read_table(path).to_pylist()):
            if number not in gone:
                found.append(tuple(row.values()))
    return sorted(found, key=repr)


def test_versions_are_made_in_pieces_too(folder: Path) -> None:
    made = Stream().transaction(*(insert(str(n), "old", photo(n), photo(-n)) for n in range(300)))
    changed = Stream(transactions=10)
    order = list(range(300))
    random.Random(8).shuffle(order)
    changed.transaction(*(update(str(n), "new", UNSENT, UNSENT) for n in order if n % 10))
    changed.transaction(*(update(str(n), "newer", UNSENT, "sent") for n in order if n % 10 == 1))
    changed.transaction(delete("2", None, None, None), insert("900", "late", "p", "s"))
    changed.transaction(update("901", "moved", UNSENT, UNSENT, key=("0", None, None, None)))
    outcomes, files = [], []
    for name, piece_bytes in (("small", PIECE), ("large", 1 << 30)):
        place = folder / name
        place.mkdir()
        first = history(place, [], piece_bytes).write(fold_history([made.raw(SCHEMA)], position=0))
        second = history(place, [first], piece_bytes).write(fold_history([changed.raw(SCHEMA)], position=0, since=1))
        assert second.unresolved == 0
        outcomes.append(versions_in([first, second]))
        files.append(len(second.added))
        again = history(place, [first, second], piece_bytes)
        there = encode_keys([pa.array([0, 1, 2, 5, 900, 901, 7777])])
        assert again.has(there).tolist() == [False, True, False, True, True, True, False]
    small, large = outcomes
    assert len(small) == 300 + 270 + 30 + 1 + 1
    assert small == large
    assert files[0] > files[1] == 3


@pytest.mark.full
@pytest.mark.parametrize("mode", ["clone", "history"])
def test_more_than_two_gigabytes_to_be_fetched_take_little_memory(folder: Path, mode: str) -> None:
    """In a process of its own, whose largest memory is asked for at its end."""
    command = [sys.executable, __file__, str(folder), mode]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    fetched, memory = (int(word) for word in done.stdout.split())
    assert fetched == 24_000
    assert memory < MOST_MEMORY


def large(folder: Path, mode: str) -> None:
    """An update of a small column in 24,000 rows with 100 KB each that are not sent."""
    import resource  # noqa: PLC0415 - of the process that is measured

    rows = 24_000

    def inserts(begin: int) -> Stream:
        return Stream().transaction(*(insert(str(n), "old", photo(n, 100_000), "s") for n in range(begin, begin + 300)))

    plan = over(folder, [], PIECE_BYTES) if mode == "clone" else history(folder, [], PIECE_BYTES)
    fold = fold_clone if mode == "clone" else fold_history
    parts = [plan.write(fold([inserts(begin).raw(SCHEMA)], position=0)) for begin in range(0, rows, 300)]
    order = list(range(rows))
    random.Random(9).shuffle(order)
    changed = Stream(transactions=10).transaction(*(update(str(n), "new", UNSENT, UNSENT) for n in order))
    plan = over(folder, parts, PIECE_BYTES) if mode == "clone" else history(folder, parts, PIECE_BYTES)
    part = plan.write(fold([changed.raw(SCHEMA)], position=0))
    print(part.fetched // 2, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)  # noqa: T201


if __name__ == "__main__":
    large(Path(sys.argv[1]), sys.argv[2])

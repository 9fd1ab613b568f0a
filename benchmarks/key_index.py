"""The key index at scale: what finding the rows of a batch costs, what the index takes, and what it costs to lose it.

    python benchmarks/key_index.py [--keys 100000000] [--others 10000000] [--changes 10000] [--cases NAME ...]

Data files of a million rows each, written as a copy writes them, and their sidecars. Every figure is of a process of
its own. Cold: the first batch after a restart, with nothing of the sidecars in memory; warm: the next ones. Memory is
what the process has for itself after all that; the sidecars are mapped, and shared by all processes.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness import Result, parser, report, say
from penstock.destinations.iceberg.data_files import ICEBERG
from penstock.destinations.lake.columns import LakeColumn
from penstock.destinations.lake.history_files import KeyReader
from penstock.destinations.lake.key_index import IndexedFile, KeyIndex
from penstock.fold.keys import encode_keys
from penstock.fold.layout import ROWS

ROWS_PER_FILE = 1_000_000
SMALL_FILES, ROWS_PER_SMALL_FILE = 1_000, 1_000
WARM = 15
PRIME = 2_654_435_761  # of 2^32: spreads numbers over a file's and over all files' ranges
Numbers = npt.NDArray[np.int64]


def _in_order(numbers: Numbers) -> list[pa.Array]:
    return [pa.array(numbers)]


def _scattered(numbers: Numbers) -> list[pa.Array]:
    return [pa.array(numbers * PRIME % (1 << 40))]


def _text(numbers: Numbers) -> list[pa.Array]:
    """As random UUIDs are: every file has keys of the whole range."""
    first, second = numbers * PRIME % (1 << 32), (numbers * PRIME >> 7) % (1 << 32)
    return [
        pa.array([f"{one:08x}-4a7c-9b21-{two:08x}{one & 0xFFFF:04x}" for one, two in zip(first, second, strict=True)])
    ]


def _composite(numbers: Numbers) -> list[pa.Array]:
    return [pa.array(numbers % 1000), pa.array([f"item-{number}" for number in numbers // 1000])]


@dataclass(frozen=True)
class Case:
    name: str
    columns: Callable[[Numbers], list[pa.Array]]
    keys: int
    files: int
    folder: Path = Path()
    aged: bool = False  # every file is of a batch of its own

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(f"k{number}" for number in range(len(self.columns(np.arange(1)))))

    @property
    def stored(self) -> tuple[LakeColumn, ...]:
        types = [column.type for column in self.columns(np.arange(1))]
        keys = [LakeColumn(n + 1, f"k{n}", type, required=True) for n, type in enumerate(types)]
        return (*keys, LakeColumn(len(types) + 1, "value", pa.int64(), required=False))

    @property
    def index(self) -> KeyIndex:
        return KeyIndex(self.folder / "index", self.key)

    def numbers(self, file: int) -> Numbers:
        each = -(-self.keys // self.files)
        return np.arange(file * each, min((file + 1) * each, self.keys), dtype=np.int64)

    def read_keys(self, file: IndexedFile) -> pa.Array:
        return KeyReader(ICEBERG, self.stored, self.key, ROWS, ended=False)(file)


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--keys", type=int, default=100_000_000, help="of the two cases with a bigint key")
    arguments.add_argument("--others", type=int, default=10_000_000, help="of those with a text and a composite key")
    arguments.add_argument("--changes", type=int, default=10_000, help="keys that are looked up at once")
    arguments.add_argument("--cases", nargs="*", help="only those whose name has one of these words")
    options = arguments.parse_args()
    large, others = -(-options.keys // ROWS_PER_FILE), -(-options.others // ROWS_PER_FILE)
    cases = [
        Case("bigint, files by range", _in_order, options.keys, large),
        Case("bigint, over all files", _scattered, options.keys, large),
        Case("text of 33 letters", _text, options.others, others),
        Case("bigint and text", _composite, options.others, others),
        Case("1,000 small files", _scattered, SMALL_FILES * ROWS_PER_SMALL_FILE, SMALL_FILES, aged=True),
    ]
    lines = []
    for case in cases:
        if not options.cases or any(word in case.name for word in options.cases):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                lines.append(_measured(replace(case, folder=Path(folder)), options.changes))
            say(str(dict(zip(COLUMNS, lines[-1], strict=True))))
    results = []
    for line in lines:
        name, keys, files, size, warm, cold, own, _, _, again = line
        found = f"{warm:.0f} ms, the first after a restart {cold:.0f} ms, {own} MiB"
        index = f"{size:.0f} bytes a key, made again in {again:.0f} s"
        what = f"{options.changes:,} of {keys:,} keys in {files:,} files ({name})"
        results.append(Result(what, found, index, warm, "ms"))
    title = f"{options.changes:,} keys looked up at once"
    report("key_index", title, COLUMNS, lines, options=options, results=results)


COLUMNS = (
    "key",
    "keys",
    "files",
    "bytes a key",
    "warm ms",
    "cold ms",
    "memory MiB",
    "mapped MiB",
    "written s",
    "made again s",
)


def _measured(case: Case, changes: int) -> tuple[Any, ...]:
    (case.folder / "data").mkdir()
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        written = pool.starmap(_write, [(case, number) for number in range(case.files)], chunksize=1)
    files = [IndexedFile(path, records, n if case.aged else 1) for n, (path, records, _) in enumerate(written)]
    sidecars = sum(path.stat().st_size for path in case.index.folder.iterdir())
    looked_up = _alone(_look_up, case, files, changes, _not_needed)
    shutil.rmtree(case.index.folder)
    again = _alone(_look_up, case, files, changes, case.read_keys)
    return (
        case.name,
        case.keys,
        case.files,
        sidecars / case.keys,
        statistics.median(looked_up["warm"]) * 1000,
        looked_up["cold"] * 1000,
        looked_up["own"],
        looked_up["mapped"],
        sum(seconds for _, _, seconds in written),
        again["cold"],
    )


def _write(case: Case, number: int) -> tuple[str, int, float]:
    """A data file and its sidecar; gives its path, its rows and the seconds that the sidecar took."""
    numbers = np.random.default_rng(number).permutation(case.numbers(number))
    columns = case.columns(numbers)
    names = [column.name for column in case.stored]
    written = ICEBERG.write_rows(
        str(case.folder / "data"), case.stored, [pa.table([*columns, pa.array(numbers)], names=names)]
    )
    keys = encode_keys(columns)
    began = time.perf_counter()
    case.index.write(written.path, keys)
    return written.path, written.records, time.perf_counter() - began


def _alone(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _not_needed(file: IndexedFile) -> pa.Array:
    raise AssertionError(f"the sidecar of {file.path} is not sound")


def _look_up(
    case: Case, files: list[IndexedFile], changes: int, read_keys: Callable[[IndexedFile], pa.Array]
) -> dict[str, Any]:
    for path in case.index.folder.iterdir() if case.index.folder.is_dir() else ():
        _forgotten(path)
    random = np.random.default_rng(1)
    before, _ = _memory()
    times = []
    for _ in range(WARM + 1):
        chosen = np.unique(random.integers(0, case.keys, changes))
        keys = encode_keys(case.columns(chosen))
        began = time.perf_counter()
        places = case.index.locate(keys, files, read_keys)
        times.append(time.perf_counter() - began)
        assert len(places.rows) == len(chosen)
    own, mapped = _memory()
    return {"cold": times[0], "warm": times[1:], "own": own - before, "mapped": mapped}


def _forgotten(path: Path) -> None:
    """The file's contents are read from disk next time, if the system lets go of them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _memory() -> tuple[int, int]:
    """MiB of this process alone, and of files that are mapped into it."""
    status = Path("/proc/self/status").read_text()
    own, mapped = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("RssAnon", "RssFile"))
    return int(own[1]) // 1024 if own else 0, int(mapped[1]) // 1024 if mapped else 0


if __name__ == "__main__":
    main()

"""Rows a second through decode and fold, for the design's table of eight columns.

    python benchmarks/decode.py [--rows 500000] [--rounds 5]

Prints the prototype's work in the same run as a yardstick (new rows only,
every column to strings, nothing checked), then decode of every image into typed columns, then fold with few and with
many changes a key. It runs on one core and measures processor time, so that other work on the machine matters less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from harness import Result, parser, report, say
from penstock.decode.postgres.columns import column
from penstock.decode.postgres.messages import Messages
from penstock.fold.clone import fold_clone
from penstock.model.change import INSERT, RAW_SCHEMA, UPDATE, RawChanges
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from watch import Watch

PROTOTYPE, DECODE = "prototype: every column to strings", "decode: every image, typed"
RELATION = 16_385
SEGMENT_ROWS = 100_000  # about 16 MiB

COLUMNS = {
    "id": ColumnType(20, "int8"),
    "customer": ColumnType(23, "int4"),
    "status": ColumnType(25, "text"),
    "amount": ColumnType(1700, "numeric", (12 << 16 | 2) + 4),
    "at": ColumnType(1184, "timestamptz"),
    "details": ColumnType(3802, "jsonb"),
    "note": ColumnType(25, "text"),
    "paid": ColumnType(16, "bool"),
}
SCHEMA = TableSchema(
    TableId("public", "events"), RELATION, tuple(Column(name, type) for name, type in COLUMNS.items()), ("id",)
)


def message(operation: int, key: int, version: int) -> bytes:
    cells = (
        f"{key}",
        f"{key * 7919 % 1_000_003}",
        ("placed", "paid", "packed", "shipped")[(key + version) % 4],
        f"{key % 99991}.{key % 100:02}",
        f"2026-{key % 12 + 1:02}-{key % 28 + 1:02} {key % 24:02}:00:{version % 60:02}.{key % 1_000_000:06}+00",
        f'{{"sku": "A-{key % 5000}", "qty": {key % 9}}}',
        None if key % 10 == 0 else f"note {key}",
        "t" if key % 2 else "f",
    )
    parts = [bytes([operation]), RELATION.to_bytes(4, "big"), b"N", len(cells).to_bytes(2, "big")]
    for cell in cells:
        parts.append(b"n" if cell is None else b"t" + len(cell).to_bytes(4, "big") + cell.encode())
    return b"".join(parts)


def segments(rows: int, keys: int) -> list[RawChanges]:
    """`rows` changes of `keys` keys, spread evenly: the first of each key an insert, the others updates."""
    result = []
    for begin in range(0, rows, SEGMENT_ROWS):
        numbers = range(begin, min(begin + SEGMENT_ROWS, rows))
        data = [message(INSERT if n < keys else UPDATE, n % keys, n // keys) for n in numbers]
        lsn = pa.array([100 + n // 10 for n in numbers], pa.uint64())
        arrays = [
            lsn,
            pa.array([n % 10 for n in numbers], pa.uint64()),
            lsn,
            pa.array(np.ones(len(data), np.uint64)),
            lsn.cast(pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.array([one[0] for one in data], pa.uint8()),
            pa.array(data, pa.binary()),
        ]
        result.append(RawChanges(SCHEMA, pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)))
    return result


def prototype(changes: list[RawChanges]) -> None:
    """Do what the prototype did: find places by gathers, take columns, cast them to string."""
    for one in changes:
        _, offsets, raw = one.batch.column("data").buffers()
        octets = np.frombuffer(raw, np.uint8)
        fours = np.lib.stride_tricks.sliding_window_view(octets, 4)
        position = np.frombuffer(offsets, np.int32)[: one.batch.num_rows].astype(np.int64) + 8
        even = pa.array(np.arange(0, 2 * len(position), 2, dtype=np.int32))
        for _ in COLUMNS:
            sent = octets[position] == ord("t")
            length = np.ascontiguousarray(fours[np.minimum(position + 1, len(octets) - 4)]).view(">i4")[:, 0]
            start = position + 1 + 4 * sent
            position = start + np.where(sent, length, 0)
            both = np.empty(2 * len(start) + 1, np.int32)
            both[0:-1:2], both[1::2], both[-1] = start, position, position[-1]
            array = pa.Array.from_buffers(pa.binary(), 2 * len(start), [None, pa.py_buffer(both), raw])
            array.take(even).cast(pa.string())


def decode(changes: list[RawChanges]) -> None:
    for one in changes:
        messages = Messages(one)
        cells = messages.images(np.arange(len(messages)))
        for index in range(len(COLUMNS)):
            column(messages, cells, index)


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rows", type=int, default=500_000)
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    rows = options.rows
    unique, repeated = segments(rows, rows), segments(rows, max(rows // 20, 1))
    say("the messages are made")
    raw = sum(one.batch.column("data").nbytes for one in unique)
    works: dict[str, Callable[[], object]] = {
        PROTOTYPE: lambda: prototype(unique),
        DECODE: lambda: decode(unique),
        "fold: one change a key": lambda: fold_clone(unique, position=0),
        "fold: one of 4 buckets, one change a key": lambda: fold_clone(unique, position=0, buckets=4),
        "fold: 20 changes a key": lambda: fold_clone(repeated, position=0),
    }
    with Watch(os.getpid()) as watch:
        best = {name: min(timed(work) for _ in range(options.rounds)) for name, work in works.items()}
    report(
        "decode",
        f"{rows:,} changes, {raw / rows:.0f} bytes each, {len(COLUMNS)} columns: one core, best of {options.rounds}",
        ("what", "CPU seconds", "rows/s"),
        [(name, seconds, round(rows / seconds)) for name, seconds in best.items()],
        options=options,
        results=[
            Result(
                f"{DECODE}, {len(COLUMNS)} columns, one core",
                f"{rows / best[DECODE]:,.0f} rows/s",
                f"{PROTOTYPE} {rows / best[PROTOTYPE]:,.0f} rows/s",
                best[PROTOTYPE] / best[DECODE],
                "of its speed",
            )
        ],
        processes={"this process": watch.roles},
    )


if __name__ == "__main__":
    main()

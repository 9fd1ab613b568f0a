"""When a reader of a lake can see a transaction: which metadata file the catalog names, and which position is in it.

Used by `freshness` and `outage`, for tables of `traffic` and pipelines of the name `bench`.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.table import StaticTable

from traffic import Committed

ASK_SECONDS = 0.01
PROVED = 3  # metadata files of each table that are read


@dataclass(frozen=True)
class Seen:
    """A position that a reader found, and when."""

    position: int
    at: float
    metadata: str


class LakeReader:
    """Asks the catalog as any reader would; `seen` has for each table the positions and when they were found."""

    def __init__(self, warehouse: Path) -> None:
        self.seen: dict[str, list[Seen]] = defaultdict(list)
        self.cpu_seconds = 0.0
        self._catalog = warehouse / "catalog.db"
        self._locations: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def has(self, written: dict[str, list[Committed]]) -> bool:
        return all(
            self.seen[name] and self.seen[name][-1].position >= transactions[-1].position
            for name, transactions in written.items()
        )

    def _run(self) -> None:
        connection = sqlite3.connect(f"file:{self._catalog}?mode=ro", uri=True)
        while not self._stopping.wait(ASK_SECONDS):
            try:
                found = connection.execute("select table_name, metadata_location from iceberg_tables").fetchall()
            except sqlite3.OperationalError:
                continue  # a commit holds it: ask again
            for name, location in found:
                if self._locations.get(name) != location:
                    self._locations[name] = location
                    self._read(name, location)
        connection.close()
        self.cpu_seconds = time.thread_time()

    def _read(self, name: str, location: str) -> None:
        metadata = json.loads(Path(re.sub("^file:(//)?", "", location)).read_text())
        text = metadata["properties"].get("penstock.position.bench")
        if text is not None:
            self.seen[name].append(Seen(int(text, 16), time.monotonic(), location))


def prove(seen: list[Seen], transactions: list[Committed]) -> None:
    """Reads what a reader would have read then: every key up to the position must be there."""
    first = transactions[0]
    for one in [one for one in seen if one.position > first.position][-PROVED:]:
        keys = [item.key for item in transactions if item.position <= one.position]
        table = StaticTable.from_metadata(one.metadata)
        found = table.scan(row_filter=f"id > {first.key} and id <= {keys[-1]}", selected_fields=("id",)).to_arrow()
        if found.num_rows != keys[-1] - first.key:
            raise SystemExit(f"{one.metadata} shows {found.num_rows} rows of {keys[-1] - first.key} up to its position")


def matched(written: list[Committed], seen: list[Seen]) -> list[tuple[float, float]]:
    """When each transaction was committed, and when a reader found it; all of them must have been found."""
    pairs, at = [], 0
    for transaction in written:
        while seen[at].position < transaction.position:
            at += 1
        pairs.append((transaction.at, seen[at].at))
    return pairs

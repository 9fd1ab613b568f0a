"""Read a stream of files as its users do, knowing nothing of penstock's own code: names, lines, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

NAME = re.compile(r"([0-9a-f]{16}\.[0-9a-f]{16})-([0-9a-f]{16}\.[0-9a-f]{16})(\.[0-9]{16})?\.jsonl")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class StreamReader:
    """`folder` is the one of a source."""

    folder: Path

    def shards(self) -> list[list[dict[str, Any]]]:
        """The events of each shard, in order. Fails the test when a file is missing between two others."""
        found = []
        for shard in sorted(path for path in self.folder.iterdir() if path.is_dir()):
            names = sorted(path.name for path in shard.glob("*.jsonl"))
            ranges = [match.groups() for name in names if (match := NAME.fullmatch(name))]
            assert len(ranges) == len(names), f"names that no reader understands: {names}"
            for one, following in pairwise(ranges):
                assert one[1] == following[0], f"a hole between {one} and {following}"
            found.append([json.loads(line) for name in names for line in (shard / name).read_text().splitlines()])
        return found

    def events(self) -> list[dict[str, Any]]:
        return [event for shard in self.shards() for event in shard]


def last_images(shards: list[list[dict[str, Any]]]) -> dict[str, dict[str, Row]]:
    """What a stream leaves of each table when it is folded: the last image of each key, by table and key."""
    tables: dict[str, dict[str, Row]] = {}
    for shard in shards:
        rows: dict[str, dict[str, Row]] = {}
        for event in shard:
            of_table = rows.setdefault(event["table"], {})
            key = json.dumps(event["key"])
            if event["op"] == "truncate":
                of_table.clear()
            elif event["op"] == "delete":
                assert of_table.pop(key, None) is not None, f"a delete of a row that is not there: {event}"
            else:
                assert (key in of_table) is (event["op"] == "update"), f"an event that does not follow: {event}"
                left_alone = {name: of_table[key][name] for name in event.get("unchanged", ())}
                of_table[key] = {**event["after"], **left_alone}
        for table, left in rows.items():
            assert not left.keys() & tables.get(table, {}).keys(), "a key is in two shards"
            tables.setdefault(table, {}).update(left)
    return tables

"""Describe a table's partitions as they were last seen, and how those that came or went differ.

What happens to a whole partition (attached, detached, dropped, truncated) is in no stream: it is found by comparing two
looks. The source reads them, the state store keeps the last one, the runtime compares. docs/partitions.md says why.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from penstock.model.position import Position
from penstock.model.table import TableId
from penstock.model.write_counters import LinkCounts, WriteCounters

NO_LINKS = LinkCounts(0, 0)

RemarkKind = Literal["kept", "missing", "stale", "replaced"]


@dataclass(frozen=True)
class Partition:
    """A partition that holds rows. `file` is another after a TRUNCATE (and after any rewrite).

    `made_here`: it was created as a partition, so that all of its rows were sent as changes of the table. `link` is
    another when it was attached again. `written` is the transaction that last wrote its entry in the catalogue, as raw
    changes number it; 0 in records that are older than this field.
    """

    relation: TableId
    relation_id: int
    file: int
    made_here: bool
    link: str
    written: int = 0


@dataclass(frozen=True)
class Remark:
    """How the destination differs from the source for one partition, until the table is copied again.

    "kept": gone at the source, its rows are kept. "missing": attached with rows that were never sent. "stale":
    truncated at the source, its rows are still there. "replaced": detached and attached again, or dropped and created
    again under its name, so that its rows may be others.
    """

    relation: TableId
    kind: RemarkKind
    since: datetime


@dataclass(frozen=True)
class Links:
    """The links between tables and their partitions in the source's database, as counted and as seen at a look.

    The counts were read just before the look, which saw `present` links: `snapshot` tells which transactions it saw. In
    another `epoch` counts begin anew. `unseen` are the links of all looks so far that were counted and not seen; below
    0, those that were seen and are yet to be counted.
    """

    epoch: str
    counted: LinkCounts
    present: int
    snapshot: str
    unseen: LinkCounts = NO_LINKS

    def came_and_went(self) -> bool:
        """Tell whether a link was made and removed again between two looks, so that none of them saw it.

        What was only counted as made was rolled back, or seen before it was counted.
        """
        return min(self.unseen.made, self.unseen.removed) > 0


@dataclass(frozen=True)
class Partitions:
    """One look.

    Transactions numbered below `horizon` had ended; a row of theirs is older than the look. `position` is where the
    source's log was then; None in records that are older than this field. `links` is None where the source does not
    count them.
    """

    horizon: int
    partitions: tuple[Partition, ...]
    remarks: tuple[Remark, ...] = ()
    position: Position | None = None
    links: Links | None = None

    def counted_from(self, counters: WriteCounters) -> Partitions:
        """Return the look with the links as they were counted before its snapshot was taken."""
        if self.links is None or counters.links is None:
            return replace(self, links=None)
        return replace(self, links=replace(self.links, epoch=counters.epoch, counted=counters.links))

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=datetime.isoformat, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Partitions:
        raw: dict[str, Any] = json.loads(text)
        return cls(
            raw["horizon"],
            tuple(Partition(**{**one, "relation": TableId(**one["relation"])}) for one in raw["partitions"]),
            tuple(
                Remark(TableId(**one["relation"]), one["kind"], datetime.fromisoformat(one["since"]))
                for one in raw["remarks"]
            ),
            raw.get("position"),
            _links(raw.get("links")),
        )


def _links(raw: dict[str, Any] | None) -> Links | None:
    if raw is None:
        return None
    return Links(**{**raw, "counted": LinkCounts(**raw["counted"]), "unseen": LinkCounts(**raw["unseen"])})

"""Compare what Postgres' catalogue shows of a table and its change stream does not.

`table_marks.py` reads it. Everybody else keeps it as TableMarks (model/table_marks.py), whose `facts` only this module
reads.

Stamps are `oid:xmin` of catalogue rows. Postgres writes a new version of such a row for every change to it, and gives a
row that is dropped and made again another oid, so equal stamps are certain to mean that nothing happened in between.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.model.table_marks import TableMarks


@dataclass(frozen=True)
class PublishedBy:
    """One publication that has the table.

    `stamp` is the publication's own; `through` are the stamps of the rows that put the table into it: the table itself,
    a partitioned table above it, or its schema.
    """

    publication: str
    stamp: str
    through: tuple[str, ...]


@dataclass(frozen=True)
class EnumLabel:
    """A value of an enum type that the table's columns reach, also inside arrays, domains, composites and ranges."""

    oid: int
    xmin: int
    type_oid: int
    type: str
    label: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Composite:
    """A composite type that the table's columns reach. `stamp` changes with any of its attributes."""

    oid: int
    name: str
    stamp: int


@dataclass(frozen=True)
class CatalogueMarks:
    """One look. `taken` orders looks: it is the first transaction id that had not been given out by then, as 64 bits.

    `place` is the stamp of the table's membership in its schema. `file` is another after the table's rows were written
    again; 0 where a publication names the table, for then nothing can do that unseen.
    """

    taken: int
    place: str
    published: tuple[PublishedBy, ...]
    labels: tuple[EnumLabel, ...] = ()
    composites: tuple[Composite, ...] = ()
    file: int = 0

    def to_marks(self) -> TableMarks:
        facts = asdict(self)
        return TableMarks.of(facts.pop("taken"), facts)

    @classmethod
    def from_marks(cls, marks: TableMarks) -> CatalogueMarks:
        raw: dict[str, Any] = json.loads(marks.facts)
        return cls(
            marks.taken,
            raw["place"],
            tuple(PublishedBy(**{**one, "through": tuple(one["through"])}) for one in raw["published"]),
            tuple(EnumLabel(**{**one, "columns": tuple(one["columns"])}) for one in raw["labels"]),
            tuple(Composite(**one) for one in raw["composites"]),
            raw.get("file", 0),
        )


def why_copied_again(before: TableMarks, now: TableMarks) -> str:
    """Say why a table with the marks `before` has to be copied again, now that it has others; "" when it has not.

    A look that is older than `before` says nothing. A table that is in no publication now is not judged: it is
    copied again when it is published again.
    """
    if now.taken < before.taken:
        return ""
    known, found = CatalogueMarks.from_marks(before), CatalogueMarks.from_marks(now)
    return _moved(known, found) or _labels(known, found) or _composites(known, found)


def why_events_missing(before: TableMarks, now: TableMarks) -> str:
    """Say why changes may be missing from a stream of a table that had the marks `before`; "" when none are.

    As `why_copied_again`, but for enum values: renaming one concerns rows that are held, not changes that were sent.
    """
    if now.taken < before.taken:
        return ""
    known, found = CatalogueMarks.from_marks(before), CatalogueMarks.from_marks(now)
    return _moved(known, found) or _composites(known, found)


def may_be_written_again(before: TableMarks, now: TableMarks) -> bool:
    """Return whether the table has another file now, and no publication names it."""
    known, found = CatalogueMarks.from_marks(before).file, CatalogueMarks.from_marks(now).file
    return 0 not in (known, found) and known != found


def new_labels(before: TableMarks, now: TableMarks) -> list[EnumLabel]:
    """Return the enum values that were not there before: added since, or of a type that a new column brought."""
    return _new_labels(CatalogueMarks.from_marks(before), CatalogueMarks.from_marks(now))


def with_additions(before: TableMarks, now: TableMarks) -> TableMarks:
    """Return `before` with the enum values and composite types that `now` has in addition, and with its file."""
    known, found = CatalogueMarks.from_marks(before), CatalogueMarks.from_marks(now)
    composites = {one.oid for one in known.composites}
    wider = replace(
        known,
        labels=(*known.labels, *_new_labels(known, found)),
        composites=(*known.composites, *(one for one in found.composites if one.oid not in composites)),
        file=found.file,
    )
    return replace(wider.to_marks(), position=before.position)


def _new_labels(before: CatalogueMarks, now: CatalogueMarks) -> list[EnumLabel]:
    known = {label.oid for label in before.labels}
    return [label for label in now.labels if label.oid not in known]


def _moved(before: CatalogueMarks, now: CatalogueMarks) -> str:
    return _published(before.published, now.published) or (
        "it was moved to another schema and back" if before.place != now.place else ""
    )


def _published(before: tuple[PublishedBy, ...], now: tuple[PublishedBy, ...]) -> str:
    if not now or before == now:
        return ""
    earlier = {one.publication: one for one in before}
    for one in now:
        known = earlier.get(one.publication)
        if known is None:
            return f"it was added to publication {one.publication} meanwhile"
        if known.stamp != one.stamp:
            return f"publication {one.publication} was altered or created again, and may have left out changes"
        if known.through != one.through:
            return (
                f"it left publication {one.publication} and came back, or its row filter or column list there was "
                "altered"
            )
    gone = next(name for name in earlier if name not in {one.publication for one in now})
    return f"it left publication {gone}"


def _labels(before: CatalogueMarks, now: CatalogueMarks) -> str:
    present = {label.oid: label for label in now.labels}
    types = {label.type_oid for label in now.labels}
    for known in before.labels:
        label = present.get(known.oid)
        if label is None:
            if known.type_oid in types:
                return f"value {known.label!r} of enum {known.type} was removed"
        elif label.label != known.label:
            return f"value {known.label!r} of enum {known.type} was renamed to {label.label!r}"
        elif label.xmin != known.xmin:
            return f"value {known.label!r} of enum {known.type} was altered, perhaps renamed and renamed back"
    return ""


def _composites(before: CatalogueMarks, now: CatalogueMarks) -> str:
    present = {one.oid: one for one in now.composites}
    for known in before.composites:
        one = present.get(known.oid)
        if one is not None and one.stamp != known.stamp:
            return f"composite type {one.name} was altered"
    return ""

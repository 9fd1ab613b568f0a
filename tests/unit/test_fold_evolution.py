"""What a change of structure is, and whether rows can follow it: written out, version by version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.decode.choices import fitted
from penstock.destinations.iceberg.type_map import ICEBERG_TYPES
from penstock.fold.clone import fold_clone
from penstock.fold.evolution import Followed, follow, places
from penstock.model.change import RawChanges
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from pgoutput_messages import INT4, INT8, TEXT, UNSENT, Change, insert, numeric, raw_changes, update

VARCHAR = ColumnType(1043, "varchar", 14)
FLOAT4 = ColumnType(700, "float4")


def version(*columns: tuple[Any, ...], key: tuple[str, ...] = ("id",), **facts: Any) -> TableSchema:
    """Columns as (number, name, type[, filled])."""
    described = tuple(
        Column(name, type, name not in key, number, *(filled if filled else (None,)))
        for number, name, type, *filled in columns
    )
    numbers = tuple(column.number for column in described)
    told = {"storage": 7, "stamp": 1, "numbered": max(numbers), "live": tuple(filter(None, numbers)), **facts}
    return TableSchema(TableId("public", "things"), 16_385, described, key, **told)


BASE = version((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4))


def followed(*versions: TableSchema, base: TableSchema = BASE) -> Followed:
    fitting = [fitted(version, ICEBERG_TYPES) for version in versions]
    return follow(fitted(base, ICEBERG_TYPES), fitting, ICEBERG_TYPES)


def altered(*columns: tuple[Any, ...], **facts: Any) -> TableSchema:
    return version(*columns, **{"stamp": 2, **facts})


def guessed(*names: str, **facts: Any) -> TableSchema:
    """What a catalogue that has moved on gives: names and types, and what it had by then."""
    types = {"id": INT8, "n": INT4}
    columns = [(0, name, types.get(name, TEXT)) for name in names]
    return altered(*columns, **{"guessed": True, "numbered": 3, **facts})


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4), (4, "b", TEXT)), "column b added (text)"),
        (altered((1, "id", INT8), (2, "a", TEXT), numbered=3), "column n dropped"),
        (altered((1, "id", INT8), (2, "b", TEXT), (3, "n", INT4)), "column a renamed to b"),
        (altered((1, "key", INT8), (2, "a", TEXT), (3, "n", INT4), key=("key",)), "column id renamed to key"),
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4), identity="full"), "replica identity key changed"),
        (altered((1, "id", INT8), (2, "n", TEXT), (3, "a", INT4)), "column a renamed to n"),
        (altered((1, "id", INT8), (2, "a", TEXT), (4, "n", INT4), exact=True), "column n added"),
        (altered((1, "id", INT8), (2, "a", VARCHAR), (3, "n", INT4)), "changed from text to varchar(10)"),
    ],
    ids=[
        "added",
        "dropped",
        "renamed",
        "renamed key",
        "identity",
        "swapped",
        "dropped and re-added, told by the trigger",
        "type",
    ],
)
def test_light_changes_are_followed(after: TableSchema, change: str | None) -> None:
    found = followed(after)
    assert found.resync == ""
    assert change is None or any(change in one for one in found.changes), found.changes
    assert [column.number for column in found.schema.columns] == [column.number for column in after.columns]


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4), (4, "b", TEXT, "x")), "older rows show 'x'"),
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4), (4, "b", TEXT), storage=8), "written again"),
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT8), storage=8), "written again"),
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", TEXT), storage=8), "n changed from int4 to text"),
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4), storage=8), "written again"),
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4), key=("id", "n")), "key changed"),
        (altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4), key=("n",)), "key changed"),
        (replace(BASE, relation_id=5), "created again"),
        (altered((1, "id", INT8), (2, "a", TEXT), (4, "n", INT4)), "which column is which"),
        (altered((1, "id", INT8), (3, "n", INT4), (2, "a", TEXT)), "which column is which"),
        (replace(BASE, guessed=True, stamp=0, numbered=0, live=()), "could not be read"),
        (guessed("id", "a", "n", "x", live=(1, 2, 3, 4), numbered=4), "x is new"),
        (guessed("id", "a", "x", live=(1, 2, 4), numbered=4), "which column is which"),
        (guessed("id", "a", "n", live=(1, 2, 3), storage=8), "written again"),
    ],
    ids=[
        *("default", "volatile default", "widened by a rewrite", "another type", "same type, computed", "longer key"),
        *("another key", "made again", "dropped and re-added", "not in the order of numbers", "gone"),
        *("guessed name", "guessed number", "rewritten later"),
    ],
)
def test_what_rows_cannot_follow_says_why(after: TableSchema, why: str) -> None:
    assert why in followed(after).resync


def test_a_column_that_is_published_only_now_has_values_in_old_rows() -> None:
    narrow = version((1, "id", INT8), numbered=3)
    assert "published only now" in followed(BASE, base=narrow).resync


def test_rows_written_anew_alone_are_the_same_rows() -> None:
    found = followed(replace(BASE, storage=8))  # VACUUM FULL, CLUSTER, TRUNCATE
    assert (found.resync, found.changes) == ("", ())


def test_a_column_that_came_and_went_leaves_the_structure_as_it_was() -> None:
    wider = altered((1, "id", INT8), (2, "a", TEXT), (3, "n", INT4), (4, "b", TEXT))
    found = followed(wider, replace(BASE, stamp=3, numbered=4, live=(1, 2, 3)))
    assert found.changes == ("column b added (text)", "column b dropped")
    assert places(found.versions[wider.fingerprint], found.schema) == [0, 1, 2]


def raw(schema: TableSchema, *changes: tuple[int, int, bytes]) -> RawChanges:
    return raw_changes(schema, [Change(*change) for change in changes])


def test_rows_of_several_versions_fold_into_the_newest() -> None:
    """Within one transaction: a column renamed, one added, one dropped, rows in between."""
    second = altered((1, "id", INT8), (2, "b", TEXT), (3, "n", INT4), (4, "more", TEXT))
    third = altered((1, "id", INT8), (2, "b", TEXT), (4, "more", TEXT), stamp=3)
    found = followed(BASE, second, third)
    net = fold_clone(
        [
            raw(
                found.versions[BASE.fingerprint], (100, 0, insert("1", "long", "10")), (100, 1, insert("2", "x", "20"))
            ),
            raw(found.versions[second.fingerprint], (100, 2, update("1", UNSENT, "11", UNSENT))),
            raw(found.versions[third.fingerprint], (100, 3, update("2", UNSENT, "m")), (100, 4, insert("3", "z", "y"))),
        ],
        position=0,
        schema=found.schema,
    )
    assert net.upserts.column_names == ["id", "b", "more"]
    rows = sorted(tuple(row.values()) for row in net.upserts.to_pylist())
    assert rows == [(1, "long", None), (2, "x", "m"), (3, "z", "y")]
    assert net.fetches == ()


def test_a_value_decoded_under_a_narrower_type_becomes_the_wider() -> None:
    base = version((1, "id", INT8), (2, "a", TEXT), (3, "n", numeric(8, 2)))
    wide = altered((1, "id", INT8), (2, "a", TEXT), (3, "n", numeric(12, 2)))
    found = followed(wide, base=base)
    assert found.resync == ""  # Postgres does not write rows again for it
    net = fold_clone(
        [
            raw(base, (100, 0, insert("1", "x", "7")), (100, 1, insert("2", "y", "8"))),
            raw(found.versions[wide.fingerprint], (200, 0, update("1", "z", UNSENT))),
        ],
        position=0,
        schema=found.schema,
    )
    assert str(net.upserts.schema.field("n").type) == "decimal128(12, 2)"
    assert sorted(map(int, net.upserts["n"].to_pylist())) == [7, 8]


def test_the_same_structure_has_the_same_fingerprint() -> None:
    elsewhere = replace(BASE, relation_id=99, storage=3, stamp=9, numbered=12)
    other_numbers = replace(elsewhere, columns=tuple(replace(one, number=one.number + 4) for one in BASE.columns))
    assert other_numbers.structure == BASE.structure
    assert other_numbers.fingerprint != BASE.fingerprint
    assert replace(BASE, key=()).structure != BASE.structure
    assert TableSchema.from_json(BASE.to_json()) == BASE


def test_a_choice_that_applies_no_more_is_told_as_what_it_is() -> None:
    """By the column's name, which the source has changed."""
    plain = ColumnType(1700, "numeric")
    before = version((1, "id", INT8), (2, "amount", replace(plain, carried_as="decimal(30,10)")))
    after = version((1, "id", INT8), (2, "total", plain))
    assert "total changed from numeric carried as decimal(30,10) to numeric" in followed(after, base=before).resync

"""Tests of a state store: what was found of tables, letters, quarantine, structures, pins. Collected by `store.py`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from penstock.model.anomaly import AnomalyCount
from penstock.model.dead_letter import DeadLetter, LetterCount
from penstock.model.partitions import Links, Partition, Partitions, Remark
from penstock.model.quarantine import RawMessage
from penstock.model.rescue import RescueCount
from penstock.model.schema_version import in_force
from penstock.model.table import Column, ColumnType, TableId, TableSchema
from penstock.model.table_marks import TableMarks
from penstock.model.table_state import State, TableProgress, TableStatus
from penstock.model.upkeep import TableShape, Upkeep
from penstock.model.write_counters import LinkCounts, WriteCounters
from penstock.state.store import SCHEMAS_KEPT, Health, StateStore, component_of

ORDERS = TableId("public", "orders")
ODD = TableId('My "Schema"', "täble 'x'")
NOON = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
READY = TableStatus(State.READY, NOON)


def test_the_last_look_at_partitions_is_kept(store: StateStore) -> None:
    moment = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
    part = Partition(ODD, 16384, 16390, True, "/7/8", written=2**32 - 1)
    links = Links("2026-05-04 12:00:00+00 ", LinkCounts(2**40, 7), 12, "700:702:701", LinkCounts(1, -1))
    looked = Partitions(2**40, (part,), (Remark(ODD, "kept", moment),), position=2**63, links=links)
    store.set_partitions("lake", ORDERS, Partitions(1, ()))
    store.set_partitions("lake", ORDERS, looked)
    store.set_partitions("lake", ODD, Partitions(1, ()))
    assert store.partitions("lake") == {ODD: Partitions(1, ()), ORDERS: looked}
    assert store.partitions("other") == {}
    store.set_partitions("lake", ODD, None)
    store.set_partitions("lake", ODD, None)
    assert list(store.partitions("lake")) == [ORDERS]


def test_what_the_catalogue_said_at_a_copy_is_kept(store: StateStore) -> None:
    marks = TableMarks.of(2**40, {"place": "2200:700", "labels": ['it\'s \\ "odd" é', 2**32 - 1]}, position=2**63)
    store.set_marks("lake", ORDERS, TableMarks(1))
    store.set_marks("lake", ORDERS, marks)
    store.set_marks("lake", ODD, TableMarks(1))
    assert store.marks("lake") == {ODD: TableMarks(1), ORDERS: marks}
    assert store.marks("other") == {}
    store.set_marks("lake", ODD, None)
    store.set_marks("lake", ODD, None)
    assert list(store.marks("lake")) == [ORDERS]


def test_what_the_source_had_counted_before_a_copy_is_kept(store: StateStore) -> None:
    counted = WriteCounters("2026-05-04 12:00:00+00 ", {16384: 2**40, 16390: 0}, LinkCounts(2**40, 0))
    store.set_write_counters("lake", ORDERS, WriteCounters("", {}))
    store.set_write_counters("lake", ORDERS, counted)
    store.set_write_counters("lake", ODD, WriteCounters("", {}))
    assert store.write_counters("lake") == {ODD: WriteCounters("", {}), ORDERS: counted}
    assert store.write_counters("other") == {}


def broken(commit_position: int, ordinal: int, reason: str = "it is too short") -> RawMessage:
    schema = TableSchema(ORDERS, 16384, (Column("id", ColumnType(20, "int8"), False),), ("id",))
    moment = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
    return RawMessage(
        schema, commit_position, ordinal, max(commit_position - 8, 0), 2**32 - 1, moment, ord("I"), b"I\x00\xff", reason
    )


def test_messages_stay_in_quarantine_as_they_are(store: StateStore) -> None:
    largest = broken(2**64 - 1, 2**40)
    store.quarantine("lake", ODD, [largest])
    store.quarantine("lake", ORDERS, [broken(200, 1), broken(100, 7)])
    store.quarantine("other", ORDERS, [broken(100, 7)])
    kept = store.quarantined("lake")
    assert [(one.table, one.message) for one in kept] == sorted(
        [(ODD, largest), (ORDERS, broken(100, 7)), (ORDERS, broken(200, 1))],
        key=lambda one: (one[0], one[1].order),
    )
    assert store.quarantined_counts("lake") == {ODD: 1, ORDERS: 2}
    assert timedelta() <= datetime.now(UTC) - kept[0].at < timedelta(minutes=1)


def test_a_message_that_fails_again_is_kept_once(store: StateStore) -> None:
    store.quarantine("lake", ORDERS, [broken(100, 7)])
    (before,) = store.quarantined("lake")
    store.quarantine("lake", ORDERS, [broken(100, 7, reason="another"), broken(100, 8)])
    assert [(one.id == before.id, one.at == before.at, one.message.reason) for one in store.quarantined("lake")] == [
        (True, True, "another"),
        (False, False, "it is too short"),
    ]


def test_messages_leave_quarantine_by_id_or_by_position(store: StateStore) -> None:
    store.quarantine("lake", ODD, [broken(1, 1)])
    store.quarantine("lake", ORDERS, [broken(position, 1) for position in (100, 200, 300)])
    first = next(one for one in store.quarantined("lake") if one.message.commit_position == 100)
    store.release([first.id])
    store.release([first.id])
    assert store.release_before("lake", ORDERS, 300) == 1
    assert store.release_before("other", ORDERS, 2**63) == 0
    assert store.quarantined_counts("lake") == {ODD: 1, ORDERS: 1}
    store.quarantine("lake", ORDERS, [broken(100, 1)])
    assert first.id not in {one.id for one in store.quarantined("lake")}


def letter(place: int, shard: int = -1, reason: str = "it is too large", table: TableId = ORDERS) -> DeadLetter:
    """Return a change that was refused, or a row of the copy that was."""
    at = f"{place:016x}/0"
    if place % 2:
        value, headers = b"\xff{}", (("h", b"\x00"),)
        return DeadLetter(table, at, None, value, "refused", reason, "read", "t", shard, None, headers)
    return DeadLetter(table, at, b'{"id":1}', None, "refused", reason, "update", "t", shard, broken(place, 0))


def test_dead_letters_are_kept_once_and_as_they_are(store: StateStore) -> None:
    odd = [letter(1, table=ODD), letter(2, 0, table=ODD), letter(2, 1, table=ODD)]
    assert store.keep_letters("stream", [letter(1), letter(2)], most=9)
    assert store.keep_letters("stream", odd, most=9)
    assert store.keep_letters("other", [letter(1)], most=1)
    first, *rest = store.letters("stream")
    assert store.keep_letters("stream", [letter(1, reason="again"), letter(3)], most=9)
    kept = store.letters("stream")
    assert kept[0] == replace(first, letter=letter(1, reason="again"))
    assert [one.letter for one in kept[1:]] == [letter(2), *odd, letter(3)]
    assert kept[1:-1] == rest
    assert store.letter_counts("stream") == {ODD: LetterCount(3), ORDERS: LetterCount(3)}


def test_dead_letters_have_so_much_room_and_no_more(store: StateStore) -> None:
    def keep(*places: int, drop_oldest: bool = False) -> bool:
        return store.keep_letters("stream", [letter(n) for n in places], most=3, drop_oldest=drop_oldest)

    assert keep(1, 2)
    assert not keep(3, 4)
    assert [one.letter for one in store.letters("stream")] == [letter(1), letter(2)]
    assert keep(1, 2, 3)
    assert keep(4, 5, drop_oldest=True)
    assert [one.letter for one in store.letters("stream")] == [letter(3), letter(4), letter(5)]
    assert keep(6, 7, 8, 9, drop_oldest=True)
    assert [one.letter for one in store.letters("stream")] == [letter(7), letter(8), letter(9)]
    assert store.letter_counts("stream") == {ORDERS: LetterCount(3, dropped=6)}
    assert store.expire_letters("stream", NOON) == 0
    assert store.expire_letters("other", datetime.now(UTC) + timedelta(hours=1)) == 0
    assert store.expire_letters("stream", datetime.now(UTC) + timedelta(hours=1)) == 3
    assert store.letter_counts("stream") == {ORDERS: LetterCount(0, dropped=9)}
    store.forget_table("stream", ORDERS)
    assert store.letter_counts("stream") == {}


def test_dead_letters_are_asked_for_in_order_and_once(store: StateStore) -> None:
    store.keep_letters("stream", [letter(n) for n in (1, 2, 3)], most=9)
    store.keep_letters("other", [letter(1)], most=9)
    first, second, third = (one.id for one in store.letters("stream"))
    assert store.ask_letters([third]) == [third]
    assert store.ask_letters([first, third, second, 10**6]) == [first, second]
    asked = store.asked_letters("stream")
    assert [one.letter.id for one in asked] == [third, first, second]
    assert [one.request for one in asked] == sorted({one.request for one in asked})
    assert all(timedelta() <= datetime.now(UTC) - one.at < timedelta(minutes=1) for one in asked)
    assert all(one.asked for one in store.letters("stream"))
    assert store.asked_letters("other") == []
    store.fail_letter(third, "other", "still too large")
    store.fail_letter(10**6, "other", "never was")
    store.release_letters([first, first])
    assert [one.letter.id for one in store.asked_letters("stream")] == [second]
    failed = store.letters("stream")[-1]
    assert (failed.id, failed.asked, failed.attempts, failed.letter.code) == (third, False, 2, "other")
    assert failed.letter.reason == "still too large"
    assert failed.at <= failed.tried_at
    newest = max(one.request for one in asked)
    assert store.ask_letters([third]) == [third]
    assert store.asked_letters("stream")[-1].request > newest
    store.forget_destination("stream")
    assert (store.letters("stream"), store.asked_letters("stream")) == ([], [])
    assert store.letter_counts("other") == {ORDERS: LetterCount(1)}


def structure(*names: str, relation: int = 7, guessed: bool = False) -> TableSchema:
    columns = tuple(Column(name, ColumnType(25, "text"), number=number) for number, name in enumerate(names, start=1))
    return TableSchema(ORDERS, relation, columns, ("id",), guessed=guessed)


def told(store: StateStore) -> list[tuple[TableId, int, int, int]]:
    return [(one.table, one.version, one.position, len(one.schema.columns)) for one in store.schema_versions()]


def test_versions_of_structures_are_kept_in_order(store: StateStore) -> None:
    assert store.schemas_seen() is None
    first, second = structure("id"), structure("id", "a")
    store.record_schemas([(ORDERS, first, 100), (ODD, first, 100), (ORDERS, second, 200)], seen=300)
    store.record_schemas([(ORDERS, second, 250), (ODD, first, 260)])
    store.record_schemas([(ORDERS, structure("id", "b"), 300)], seen=400)
    assert told(store) == [(ORDERS, 1, 100, 1), (ODD, 1, 100, 1), (ORDERS, 2, 200, 2), (ORDERS, 3, 300, 2)]
    assert store.schemas_seen() == 400
    sequences = [one.sequence for one in store.schema_versions()]
    assert sequences == sorted(set(sequences))
    kept = store.schema_versions()[2]
    assert (kept.schema, kept.fingerprint) == (second, second.structure)


def test_what_says_nothing_new_or_lies_behind_is_no_version(store: StateStore) -> None:
    store.record_schemas([(ORDERS, structure("id", "a"), 200)])
    columns = tuple(replace(column, number=0) for column in structure("id", "a").columns)
    unnumbered = replace(structure("id", "a", guessed=True), columns=columns)
    store.record_schemas([(ORDERS, unnumbered, 210), (ORDERS, structure("id"), 150)])
    assert told(store) == [(ORDERS, 1, 200, 2)]
    store.record_schemas([(ORDERS, structure("id", "a", relation=8), 220)])
    assert told(store) == [(ORDERS, 1, 200, 2), (ORDERS, 2, 220, 2)]
    again = store.schema_versions()
    assert again[0].fingerprint == again[1].fingerprint


def test_the_structure_at_a_position_can_be_asked_for(store: StateStore) -> None:
    store.record_schemas([(ORDERS, structure("id"), 100), (ODD, structure("id"), 150), (ORDERS, structure("x"), 200)])
    versions = store.schema_versions()
    assert in_force(versions, 99) == []
    assert [(one.table, one.version) for one in in_force(versions, 199)] == [(ODD, 1), (ORDERS, 1)]
    assert [(one.table, one.version) for one in in_force(versions, 200)] == [(ODD, 1), (ORDERS, 2)]


def test_old_versions_go_behind_all_positions(store: StateStore) -> None:
    many = SCHEMAS_KEPT + 5
    store.record_schemas([(ORDERS, structure("id", f"a{n}"), 100 + n) for n in range(many)])
    store.record_schemas([(ODD, structure("id", f"a{n}"), 100 + n) for n in range(many)])
    assert store.prune_schemas(102, [ORDERS]) == 2
    assert min(one.position for one in store.schema_versions() if one.table == ORDERS) == 102
    assert store.prune_schemas(10_000, [ORDERS]) == 3
    assert len([one for one in store.schema_versions() if one.table == ORDERS]) == SCHEMAS_KEPT
    assert len([one for one in store.schema_versions() if one.table == ODD]) == many
    store.record_schemas([(ORDERS, structure("id"), 500)])
    assert max(one.sequence for one in store.schema_versions()) > 2 * many


def test_rescued_cells_are_counted_until_the_table_is_copied_again(store: StateStore) -> None:
    assert store.rescued("lake") == {}
    store.add_rescued("lake", ORDERS, [])
    assert store.rescued("lake") == {}
    store.add_rescued(
        "lake", ORDERS, [RescueCount("n", 2, "NaN", "range 0 of its copy"), RescueCount("at", 1, "x", "1")]
    )
    store.add_rescued("lake", ORDERS, [RescueCount("n", 3, "Infinity", "2")])
    store.add_rescued("lake", ODD, [RescueCount('a"b', 1, "é", "3")])
    store.add_rescued("pond", ORDERS, [RescueCount("n", 7, "NaN", "4")])
    assert store.rescued("lake") == {
        ODD: (RescueCount('a"b', 1, "é", "3"),),
        ORDERS: (RescueCount("at", 1, "x", "1"), RescueCount("n", 5, "Infinity", "2")),
    }
    store.begin_copy("lake", ORDERS, "copy", "fingerprint", [])
    assert set(store.rescued("lake")) == {ODD}
    assert set(store.rescued("pond")) == {ORDERS}


def test_anomalies_are_counted_until_the_table_is_copied_again(store: StateStore) -> None:
    assert store.anomalies("lake") == {}
    store.add_anomalies("lake", ORDERS, [AnomalyCount("update", 2, ("1", "2")), AnomalyCount("delete", 1, ("3",))])
    store.add_anomalies("lake", ORDERS, [AnomalyCount("update", 9, ("4", "5", "6", "7"))])
    store.add_anomalies("lake", ODD, [])
    store.add_anomalies("pond", ORDERS, [AnomalyCount("insert", 1, ("8",))])
    counts = (AnomalyCount("delete", 1, ("3",)), AnomalyCount("update", 11, ("1", "2", "4", "5", "6")))
    assert store.anomalies("lake") == {ORDERS: counts}
    store.begin_copy("lake", ORDERS, "copy", "fingerprint", [])
    assert store.anomalies("lake") == {}
    assert set(store.anomalies("pond")) == {ORDERS}


def test_how_tables_are_kept_is_replaced(store: StateStore) -> None:
    first = Upkeep(NOON, TableShape(12, 3, 2**40, 20, 1.25, "merging"), 1, 2, 3, 4)
    store.record_upkeep("lake", {ORDERS: first, ODD: first})
    store.record_upkeep("pond", {ORDERS: first})
    later = Upkeep(NOON + timedelta(seconds=1), TableShape(1, 0, 5, 1, 1.0), 9, 8, 7, 6)
    store.record_upkeep("lake", {ORDERS: later})
    assert store.upkeep("lake") == {ODD: first, ORDERS: later}
    assert store.upkeep("pond") == {ORDERS: first}


def test_a_pin_goes_from_asked_to_held_to_placed_to_made(store: StateStore) -> None:
    first, second = store.ask_pins("lake", [ORDERS, ODD])
    asked = [(pin.id, pin.table, pin.state) for pin in store.pins()]
    assert asked == [(first, ORDERS, "asked"), (second, ODD, "asked")]
    assert not store.place_pin(first, 5), "it is not held yet"
    assert store.hold_pin(first)
    assert not store.hold_pin(first)
    assert store.place_pin(first, 2**64 - 1, "rows")
    store.answer_pin(first, snapshot="77", columns={1: "id", 3: "täble"})
    made, other = store.pins()
    assert (made.state, made.position, made.repair, made.snapshot) == ("made", 2**64 - 1, "rows", "77")
    assert made.columns == {1: "id", 3: "täble"}
    assert made.answered
    store.answer_pin(first, snapshot=None, reason="too late")
    assert store.pins()[0].state == "made", "an answer stands"
    assert (other.state, other.position, other.snapshot) == ("asked", None, "")


def test_a_pin_may_fail_be_renewed_and_is_dropped(store: StateStore) -> None:
    first, second = store.ask_pins("lake", [ORDERS, ORDERS])
    store.answer_pin(first, snapshot=None, reason="why", solution="what to do")
    failed, waiting = store.pins()
    assert (failed.state, failed.reason, failed.solution) == ("failed", "why", "what to do")
    store.renew_pins([second])
    assert store.pins()[1].renewed > waiting.renewed
    assert store.pins()[0].renewed == failed.renewed
    store.drop_pins([first, 12345])
    assert [pin.id for pin in store.pins()] == [second]
    store.drop_pins([second])
    assert store.ask_pins("lake", [ORDERS]) > [second], "ids are never used again"


def test_a_table_is_forgotten_with_all_that_is_kept_of_it(store: StateStore) -> None:
    for table in (ORDERS, ODD):
        store.set_table_status("lake", table, READY)
        store.record_progress("lake", {table: TableProgress(5, 1, 1.0, None, NOON)})
        store.set_rule("lake", table, "{}")
        store.begin_copy("lake", table, "c1", "f", [("0", 1)])
        store.add_rescued("lake", table, [RescueCount("a", 1, "NaN", "0/1:0")])
        store.set_partitions("lake", table, Partitions(7, (), ()))
        store.quarantine("lake", table, [broken(100, 0)])
        store.add_request("lake", table, "resync")
    store.forget_table("lake", ORDERS)
    store.forget_table("lake", TableId("never", "known"))
    kept = (store.table_status, store.progress, store.rules, store.rescued, store.partitions, store.copy_progress)
    assert [list(every("lake")) for every in kept] == [[ODD]] * 6
    assert [one.table for one in store.quarantined("lake")] == [ODD]
    assert [request.table for request in store.requests()] == [ODD]
    store.set_table_status("lake", ORDERS, TableStatus(State.DATA_SYNC, NOON))
    store.set_rule("lake", ODD, "newer")
    assert store.rules("lake") == {ODD: "newer"}


def test_a_destination_is_forgotten_with_all_that_is_kept_of_it(store: StateStore) -> None:
    for destination in ("lake", "pond"):
        store.set_table_status(destination, ORDERS, READY)
        store.set_processed(destination, 7)
        store.set_marks(destination, ORDERS, TableMarks(1))
        store.note_copy(destination, ODD, "waiting")
        store.quarantine(destination, ODD, [broken(100, 0)])
        store.add_request(destination, ODD, "resync")
        store.ask_pins(destination, [ORDERS])
        store.add_event("errored", "it happened", ORDERS, destination=destination)
        store.set_health(component_of(destination), Health("ok", NOON))
    store.add_event("read", "it concerns the source")
    store.forget_destination("lake")
    store.forget_destination("never known")
    kept = (store.table_status, store.marks, store.copy_progress, store.quarantined, store.requests, store.pins)
    assert [len(every("lake")) for every in kept] == [0] * 6
    assert [len(every("pond")) for every in kept] == [1] * 6
    assert (store.processed("lake"), store.processed("pond")) == (None, 7)
    assert [event.destination for event in store.events()] == ["pond", None]
    assert list(store.health()) == ["destination pond"]

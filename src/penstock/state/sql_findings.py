"""What is kept of tables beside their states, in the SQL state store: facts of their copies, findings, upkeep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Row, delete, select

from penstock.model.anomaly import AnomalyCount, merged_anomalies
from penstock.model.partitions import Partitions
from penstock.model.rescue import RescueCount
from penstock.model.table import TableId
from penstock.model.table_marks import TableMarks
from penstock.model.upkeep import TableShape, Upkeep
from penstock.model.write_counters import WriteCounters
from penstock.state.sql_part import SqlPart, put, table_of
from penstock.state.sql_tables import ANOMALIES, COPY_FACTS, RESCUED, UPKEEP

FIGURES = tuple(field.name for field in fields(Upkeep) if field.name != "shape")
SHAPE = tuple(field.name for field in fields(TableShape))


class SqlCopyFacts(SqlPart):
    def set_partitions(self, destination: str, table: TableId, partitions: Partitions | None) -> None:
        self._set_fact(destination, table, "partitions", None if partitions is None else partitions.to_json())

    def partitions(self, destination: str) -> dict[TableId, Partitions]:
        return {table: Partitions.from_json(text) for table, text in self._facts(destination, "partitions").items()}

    def set_marks(self, destination: str, table: TableId, marks: TableMarks | None) -> None:
        self._set_fact(destination, table, "marks", None if marks is None else marks.to_json())

    def marks(self, destination: str) -> dict[TableId, TableMarks]:
        return {table: TableMarks.from_json(text) for table, text in self._facts(destination, "marks").items()}

    def set_write_counters(self, destination: str, table: TableId, counters: WriteCounters) -> None:
        self._set_fact(destination, table, "write_counters", counters.to_json())

    def write_counters(self, destination: str) -> dict[TableId, WriteCounters]:
        found = self._facts(destination, "write_counters")
        return {table: WriteCounters.from_json(text) for table, text in found.items()}

    def set_rule(self, destination: str, table: TableId, rule: str) -> None:
        self._set_fact(destination, table, "rule", rule)

    def rules(self, destination: str) -> dict[TableId, str]:
        return self._facts(destination, "rule")

    def _set_fact(self, destination: str, table: TableId, kind: str, content: str | None) -> None:
        key = {**self._key(destination, table), "kind": kind}
        with self._writing() as connection:
            if content is None:
                connection.execute(delete(COPY_FACTS).filter_by(**key))
            else:
                put(connection, COPY_FACTS, key, {"content": content})

    def _facts(self, destination: str, kind: str) -> dict[TableId, str]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(COPY_FACTS, destination).filter_by(kind=kind)).all()
        return dict(sorted((table_of(row), row.content) for row in rows))


class SqlRowFindings(SqlPart):
    def add_rescued(self, destination: str, table: TableId, counts: Sequence[RescueCount]) -> None:
        if not counts:
            return
        with self._writing() as connection:
            for count in counts:
                key = {**self._key(destination, table), "column_name": count.column}
                before = connection.scalar(select(RESCUED.c.cells).filter_by(**key)) or 0
                values = {"cells": before + count.cells, "sample": count.sample, "place": count.place}
                put(connection, RESCUED, key, values)

    def rescued(self, destination: str) -> dict[TableId, tuple[RescueCount, ...]]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(RESCUED, destination)).all()
        found: dict[TableId, list[RescueCount]] = {}
        for row in rows:
            count = RescueCount(row.column_name, row.cells, row.sample, row.place)
            found.setdefault(table_of(row), []).append(count)
        return {table: tuple(sorted(counts, key=lambda count: count.column)) for table, counts in sorted(found.items())}

    def add_anomalies(self, destination: str, table: TableId, counts: Sequence[AnomalyCount]) -> None:
        if not counts:
            return
        with self._writing() as connection:
            known = _anomalies(connection.execute(select(ANOMALIES).filter_by(**self._key(destination, table))).all())
            for count in merged_anomalies([*known.get(table, ()), *counts]):
                key = {**self._key(destination, table), "kind": count.kind}
                put(connection, ANOMALIES, key, {"changes": count.changes, "places": "\n".join(count.places)})

    def anomalies(self, destination: str) -> dict[TableId, tuple[AnomalyCount, ...]]:
        with self._transaction() as connection:
            return _anomalies(connection.execute(self._own(ANOMALIES, destination)).all())


class SqlUpkeepReports(SqlPart):
    def record_upkeep(self, destination: str, upkeep: Mapping[TableId, Upkeep]) -> None:
        with self._writing() as connection:
            for table, kept in upkeep.items():
                values = {name: getattr(kept, name) for name in FIGURES} | asdict(kept.shape)
                put(connection, UPKEEP, self._key(destination, table), values)

    def upkeep(self, destination: str) -> dict[TableId, Upkeep]:
        with self._transaction() as connection:
            rows = connection.execute(self._own(UPKEEP, destination)).mappings().all()
        found = {}
        for row in rows:
            shape = TableShape(**{name: row[name] for name in SHAPE})
            kept = Upkeep(shape=shape, **{name: row[name] for name in FIGURES})
            found[TableId(row["table_schema"], row["table_name"])] = kept
        return dict(sorted(found.items()))


def _anomalies(rows: Sequence[Row[Any]]) -> dict[TableId, tuple[AnomalyCount, ...]]:
    found: dict[TableId, list[AnomalyCount]] = {}
    for row in rows:
        count = AnomalyCount(row.kind, row.changes, tuple(row.places.split("\n")))
        found.setdefault(table_of(row), []).append(count)
    return {table: tuple(sorted(counts, key=lambda count: count.kind)) for table, counts in sorted(found.items())}

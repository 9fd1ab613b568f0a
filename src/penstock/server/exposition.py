"""What `/metrics` says, family by family: docs/metrics.md has the same list, and a test compares them.

Figures of tables, destinations and sources come from the last look at each pipeline, as `penstock status` shows it.
Figures of batches come from the run itself, which writes them into its home (runtime/meter.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.config.model import Pipeline
from penstock.control.status.report import SourceSection, Status, TableReport
from penstock.model.table_state import State
from penstock.runtime import meter
from penstock.server.fleet import Member
from penstock.server.observatory import wal_kept
from penstock.server.prometheus import Family, written

STATUS_VALUES = {"running": 1.0, "paused": 0.5, "stopped": 0.0, "stopping": 0.0, "failed": -1.0}
_NOT_A_LABEL = re.compile(r"[^a-zA-Z0-9_]")

GAUGES = {
    "penstock_pipeline_status": "1 running, 0.5 paused or starting, 0 stopped, -1 failed.",
    "penstock_pipeline_info": "Always 1; the labels of the pipeline's file.",
    "penstock_source_up": "Whether the source answered at the last look.",
    "penstock_source_lag_seconds": "Age of the oldest change in the log that a destination lacks; the slowest counts.",
    "penstock_destination_lag_seconds": "Lag of the destination's slowest Ready table.",
    "penstock_destination_lag_bytes": "WAL between what the destination has processed and the source's position.",
    "penstock_destination_up": "1 working, 0.5 paused, 0 being retried, -1 failed.",
    "penstock_table_lag_seconds": "Age of the table's oldest change in the log that it lacks.",
    "penstock_table_lag_bytes": "WAL between what the table has processed and the source's position.",
    "penstock_slot_retained_bytes": "WAL that the server keeps for the slot.",
    "penstock_log_bytes": "Size of the change log.",
    "penstock_log_segments": "Files of the change log.",
    "penstock_table_state": "1 for the state that the table is in.",
    "penstock_tables": "Tables by state.",
    "penstock_quarantined": "Messages of the table that could not be decoded.",
    "penstock_dlq_entries": "Dead letters: events that a stream went on without.",
    "penstock_files": "Data and delete files of the table.",
    "penstock_read_cost": "Cost of a full read, relative to the same rows in full files without deletes.",
    "penstock_heartbeat_timestamp_seconds": "When the pipeline was last looked at.",
    "penstock_memory_bytes": "Resident memory of the run with all its processes.",
}
COUNTERS = {
    "penstock_applied_changes_total": "Row changes applied to the table since its record began.",
    "penstock_copy_rows_total": "Rows of the table's copy, under way or the last whole one.",
    "penstock_copy_bytes_total": "Bytes at the source of the table's copy, under way or the last whole one.",
    "penstock_rescued_cells_total": "Values that fit no column, since the table's copy began.",
    "penstock_anomalies_total": "Changes that did not suit what was there, since the table's copy began.",
    "penstock_dlq_events_total": "Dead letters that were kept or dropped.",
    "penstock_restarts_total": "How often the server has started the run again.",
}


def exposition(members: Sequence[Member], most_tables: int) -> str:
    """Write the figures of all pipelines. Above `most_tables` a pipeline's single tables are left out."""
    figures = _Figures()
    for member in members:
        figures.take(member, most_tables)
    return written(figures.families())


class _Figures:
    def __init__(self) -> None:
        self._families = {name: Family(name, "gauge", said) for name, said in GAUGES.items()}
        self._families |= {name: Family(name, "counter", said) for name, said in COUNTERS.items()}
        self._measured = {
            one.name: Family(one.name, "histogram" if one.buckets else "counter", one.help) for one in meter.METRICS
        }

    def families(self) -> list[Family]:
        return [*self._families.values(), *self._measured.values()]

    def take(self, member: Member, most_tables: int) -> None:
        name = member.name
        self._add("pipeline_status", STATUS_VALUES.get(member.shown_status, 0.5), pipeline=name)
        self._add("restarts_total", member.run.view().restarts, pipeline=name)
        if member.pipeline is None:
            return
        labels = {f"label_{_NOT_A_LABEL.sub('_', key)}": value for key, value in member.pipeline.labels.items()}
        self._families["penstock_pipeline_info"].add(1, pipeline=name, tenant=member.pipeline.tenant, **labels)
        status = member.status()
        self._sources(member.pipeline, status)
        self._destinations(name, status)
        shown = status.tables if len(status.tables) <= most_tables else []
        for table in shown:
            self._table(name, table)
        samples = member.observatory.samples(60) if member.observatory is not None else []
        if samples:
            self._add("memory_bytes", samples[-1].memory_bytes, pipeline=name)
        self._add("heartbeat_timestamp_seconds", status.at.timestamp(), pipeline=name)
        for one in meter.read(member.pipeline.home):
            labels = {key: text.removeprefix(f"{name}.") for key, text in one.labels.items()}
            self._measured[one.name].add(one.value, one.suffix, pipeline=name, **labels)

    def _sources(self, pipeline: Pipeline, status: Status) -> None:
        views = status.source_views or (SourceSection(pipeline.sources[0].name, status.source, status.log),)
        for view in views:
            labels = {"pipeline": status.pipeline, "source": view.name}
            self._add("source_up", float(view.source.problem is None), **labels)
            self._add("slot_retained_bytes", wal_kept(view.source.details), **labels)
            self._add("log_bytes", view.log.bytes, **labels)
            self._add("log_segments", view.log.segments, **labels)
            own = [one for one in status.destinations if one.source in (None, view.name)]
            lags = [one.lag_seconds for one in own if one.lag_seconds is not None]
            self._add("source_lag_seconds", max(lags, default=None), **labels)

    def _destinations(self, name: str, status: Status) -> None:
        up = {"ok": 1.0, "paused": 0.5, "retrying": 0.0, "stopped": 0.0, "failed": -1.0}
        for one in status.destinations:
            labels = {"pipeline": name, "source": one.source, "destination": one.name}
            self._add("destination_lag_seconds", one.lag_seconds, **labels)
            self._add("destination_lag_bytes", one.lag_bytes, **labels)
            self._add("destination_up", None if one.health is None else up[one.health.state], **labels)
            for state in State:
                self._add("tables", one.states.get(state.value, 0), **labels, state=state.value)

    def _table(self, name: str, table: TableReport) -> None:
        labels = {
            "pipeline": name,
            "source": table.table.source,
            "destination": table.destination,
            "table": str(table.table.name),
        }
        self._add("table_lag_seconds", table.lag_seconds, **labels)
        self._add("table_lag_bytes", table.lag_bytes, **labels)
        self._add("table_state", 1, **labels, state=table.shown_state)
        self._add("applied_changes_total", table.changes, **labels)
        self._add("quarantined", table.quarantined, **labels)
        self._add("dlq_entries", table.letters.kept, **labels)
        self._add("dlq_events_total", table.letters.kept, **labels, kind="kept")
        self._add("dlq_events_total", table.letters.dropped, **labels, kind="dropped")
        self._add("rescued_cells_total", sum(one.cells for one in table.rescued), **labels)
        for found in table.anomalies:
            self._add("anomalies_total", found.changes, **labels, kind=found.kind)
        if table.copy is not None:
            self._add("copy_rows_total", table.copy.rows, **labels)
            self._add("copy_bytes_total", table.copy.bytes, **labels)
        if table.upkeep is not None:
            self._add("files", table.upkeep.shape.files + table.upkeep.shape.delete_files, **labels)
            self._add("read_cost", table.upkeep.shape.read_cost, **labels)

    def _add(self, name: str, value: float | None, /, **labels: str | None) -> None:
        self._families[f"penstock_{name}"].add(value, **labels)

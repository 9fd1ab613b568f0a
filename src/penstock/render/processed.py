"""Events as the processors of a feed have made them, put together again for rendering.

A processor sees values with their types; a record shows the source's own text. So a column that no processor can write
stays as the source wrote it, and one that a processor may write becomes JSON, cell by cell: what was left alone is the
source's text, and only what was changed is the processor's value. An event's record does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.schema import arrow_schema
from penstock.decode.verbatim import is_verbatim, typed_values
from penstock.errors import ProcessorFailed
from penstock.fold.envelope import event_schema
from penstock.fold.projection import kept_schema
from penstock.model.feed import Projection
from penstock.model.processor import ProcessorSpec
from penstock.model.table import TableSchema
from penstock.processors.batch import UNCHANGED_TYPE, EventBatch, Facts, Route, StepFailed, columns_of, images_of
from penstock.processors.cel import CelStep
from penstock.processors.chain import Failure, run_chain
from penstock.processors.factory import step_of
from penstock.processors.javascript import JavascriptStep
from penstock.processors.python import PythonStep
from penstock.processors.writes import written_columns
from penstock.render.event import place_texts
from penstock.render.images import ImageWriter
from penstock.render.json_text import json_texts


@dataclass(frozen=True)
class ProcessedEvents:
    """`made` has the columns of `fold/envelope.py` for each event that is left; `origin` says of which it was made.

    `written` are columns of images that hold JSON. `failed` are events, by their number, that are dead letters.
    """

    made: pa.Table
    origin: npt.NDArray[np.int64]
    written: frozenset[str] = frozenset()
    route: Route | None = None
    failed: dict[int, Failure] = field(default_factory=dict)


def processed(
    made: pa.Table, schema: TableSchema, projection: Projection, specs: Sequence[ProcessorSpec]
) -> ProcessedEvents:
    """Run processors over events. ProcessorFailed when the table must stop."""
    if not specs or not made.num_rows:
        return ProcessedEvents(made, np.arange(made.num_rows))
    columns = {name: _whole(made[name]) for name in made.column_names}
    kept = kept_schema(projection, schema)
    given = EventBatch(
        facts=_facts(columns, kept),
        origin=np.arange(made.num_rows),
        op=columns["op"],
        before=_typed(columns["before"], kept),
        after=_typed(columns["after"], kept),
        unchanged=columns["unchanged"].cast(UNCHANGED_TYPE),
    )
    done = run_chain(specs, given, schema.table)
    written = written_columns(specs)
    writer = ImageWriter({one.name: one.type for one in kept.columns}, kept.dialect)
    parts = [_together(part, given, columns, written, writer) for part in done.parts]
    origin = np.concatenate([np.zeros(0, np.int64), *(part.origin for part in done.parts)])
    order = np.argsort(origin, kind="stable")
    index = pa.array(order)
    base = made.take(pa.array(origin[order]))
    for name in ("op", "before", "after"):
        if parts:
            values = pa.concat_arrays([part[name] for part in parts]).take(index)
            base = base.set_column(base.schema.get_field_index(name), name, values)
    return ProcessedEvents(base, origin[order], written, _routes(done.parts, index), done.failed)


def check_processors(specs: Sequence[ProcessorSpec], schema: TableSchema, projection: Projection) -> str | None:
    """Say in words why processors cannot work on a table: a column that it lacks, a function that is not found."""
    kept = kept_schema(projection, schema)
    wanted = arrow_schema(event_schema(kept))
    columns = {one.name: pa.array([], one.type) for one in wanted}
    batch = EventBatch(
        facts=_facts(columns, kept),
        origin=np.arange(0),
        op=columns["op"],
        before=columns["before"],
        after=columns["after"],
        unchanged=columns["unchanged"].cast(UNCHANGED_TYPE),
    )
    for number, spec in enumerate(specs):
        step = step_of(spec)
        try:
            if isinstance(step, PythonStep):
                step.check()
                added = {name: pa.array([], pa.string()) for name in step.adds}
                images = images_of({**columns_of(batch.after), **added}, pa.array([], pa.bool_()))
                batch = replace(batch, before=images, after=images)
            elif not isinstance(step, JavascriptStep | CelStep):
                batch = step.run(batch)
        except (StepFailed, ProcessorFailed) as error:
            return (
                f"processor {number + 1} ({spec.type}): {error.reason if isinstance(error, StepFailed) else error.what}"
            )
    return None


def _facts(columns: dict[str, pa.Array], schema: TableSchema) -> Facts:
    commit, ordinal = (np.asarray(columns[name]).astype(np.uint64) for name in ("commit_position", "ordinal"))
    return Facts(
        schema.table.schema,
        schema.table.name,
        schema.key,
        place_texts(commit, ordinal, np.zeros(len(commit), np.int8)),
        columns["commit_time"],
        columns["transaction"],
    )


def _typed(images: pa.StructArray, schema: TableSchema) -> pa.StructArray:
    """Return images with values of their columns' types; null where a text does not fit."""
    types = {one.name: one.type for one in schema.columns}
    made = {}
    for name, values in columns_of(images).items():
        type = types.get(name)
        made[name] = values if type is None or not is_verbatim(type) else typed_values(schema, type, values)[0]
    return images_of(made, images.is_null())


def _together(
    part: EventBatch, given: EventBatch, columns: dict[str, pa.Array], written: frozenset[str], writer: ImageWriter
) -> dict[str, pa.Array]:
    """Return operation and images of a part, with the source's text in every cell that no processor has changed."""
    index = pa.array(part.origin)
    made: dict[str, pa.Array] = {"op": part.op}
    for side, images in (("before", part.before), ("after", part.after)):
        texts, was = columns_of(columns[side].take(index)), columns_of(getattr(given, side).take(index))
        shown = {}
        for name, values in columns_of(images).items():
            if name not in written:
                shown[name] = texts[name]
                continue
            new = values if name in part.texts else json_texts(values)
            same = _same(values, was[name]) if name in was else None
            shown[name] = new if same is None else pc.if_else(same, writer.column(name, texts[name]), new)
        made[side] = images_of(shown, images.is_null())
    return made


def _same(values: pa.Array, was: pa.Array) -> pa.Array:
    """Return which cells are what they were."""
    if values.type != was.type:
        return pa.array(np.asarray(values.is_null()) & np.asarray(was.is_null()))
    if pa.types.is_nested(values.type):
        pairs = zip(values.to_pylist(), was.to_pylist(), strict=True)
        return pa.array([one == other for one, other in pairs], pa.bool_())
    return pc.or_(pc.fill_null(pc.equal(values, was), False), pc.and_(values.is_null(), was.is_null()))


def _routes(parts: Sequence[EventBatch], index: pa.Array) -> Route | None:
    if all(part.route is None for part in parts):
        return None
    routes = [Route.none(len(part)) if part.route is None else part.route for part in parts]
    names = dict.fromkeys(name for route in routes for name in route.headers)
    headers = {
        name: pa.concat_arrays([one.headers.get(name, pa.nulls(len(one.topic), pa.binary())) for one in routes])
        for name in names
    }
    whole = Route(
        pa.concat_arrays([one.topic for one in routes]),
        pa.concat_arrays([one.key for one in routes]),
        pa.concat_arrays([one.value for one in routes]),
        headers,
    )
    return whole.take(index)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

"""`filter`: keep events for which an expression is true, of some operations and tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.processors.batch import EventBatch, StepFailed, columns_of, image_of_row
from penstock.processors.evaluate import EvaluationError, Row, holds
from penstock.processors.expression import Expression


@dataclass(frozen=True)
class FilterStep:
    """`ops` are the operations that are kept; empty: all."""

    where: Expression | None
    ops: tuple[str, ...] = ()

    def run(self, batch: EventBatch) -> EventBatch:
        kept = np.ones(len(batch), np.bool_)
        if self.ops:
            kept &= np.asarray(pc.is_in(batch.op, value_set=pa.array(self.ops)))
        if self.where is not None:
            kept &= np.asarray(truth(self.where, batch))
        return batch if kept.all() else batch.take(np.flatnonzero(kept))


def truth(expression: Expression, batch: EventBatch) -> pa.Array:
    """Return for which events an expression is true. A truncate has no row: it is kept."""
    row = columns_of(image_of_row(batch))
    try:
        found = holds(expression, row_of(batch, row, expression))
    except EvaluationError as error:
        raise StepFailed("expression", str(error)) from error
    return pc.or_(found, pc.equal(batch.op, "truncate"))


def row_of(batch: EventBatch, row: dict[str, pa.Array], expression: Expression) -> Row:
    """Return what the expression's names stand for. StepFailed when a value that it needs was not sent."""
    require_sent(batch, {one.column for one in expression.names if one.side in ("", "after")})
    facts = batch.facts
    named = {
        "op": batch.op,
        "schema": pa.repeat(facts.schema, len(batch)),
        "table": pa.repeat(facts.table, len(batch)),
        "commit_time": batch.fact(facts.commit_time),
        "transaction": batch.fact(facts.transaction),
    }
    before, after = columns_of(batch.before), columns_of(batch.after)
    return Row(row, len(batch), before=before, after=after, facts=named)


def require_sent(batch: EventBatch, needed: set[str]) -> None:
    if batch.unchanged.null_count == len(batch):
        return
    for names in batch.unchanged.drop_null().to_pylist():
        missing = needed.intersection(names or ())
        if missing:
            raise StepFailed(
                "unsent",
                f"it needs column {min(missing)}, which an UPDATE left alone and the source did not send; "
                "REPLICA IDENTITY FULL sends it",
            )

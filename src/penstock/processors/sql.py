"""`sql`: compute columns by expressions, choose columns, leave events out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.processors.batch import EventBatch, StepFailed, columns_of, images_of
from penstock.processors.evaluate import EvaluationError, evaluate
from penstock.processors.expression import Expression, Selected
from penstock.processors.filter import row_of, truth


@dataclass(frozen=True)
class SqlStep:
    """`select` () keeps all columns; `assigned` are computed beside them, or instead of one of the same name.

    Both images are computed alike: in the old one, names without a prefix are its own columns."""

    select: tuple[Selected, ...] = ()
    assigned: tuple[tuple[str, Expression], ...] = ()
    where: Expression | None = None

    def run(self, batch: EventBatch) -> EventBatch:
        if self.where is not None:
            kept = np.asarray(truth(self.where, batch))
            batch = batch if kept.all() else batch.take(np.flatnonzero(kept))
        if not (self.select or self.assigned):
            return batch
        return replace(batch, before=self._image(batch, batch.before), after=self._image(batch, batch.after))

    def _image(self, batch: EventBatch, images: pa.StructArray) -> pa.StructArray:
        given = columns_of(images)
        made: dict[str, pa.Array] = {} if self.select else dict(given)
        for item in self.select:
            if item.expression is None:
                made |= {name: values for name, values in given.items() if name not in made}
            else:
                made[item.name] = self._computed(batch, images, given, item.expression)
        for name, expression in self.assigned:
            made[name] = self._computed(batch, images, given, expression)
        return images_of(made, images.is_null())

    def _computed(
        self, batch: EventBatch, images: pa.StructArray, given: dict[str, pa.Array], expression: Expression
    ) -> pa.Array:
        """Compute a column of the images that are there; the others have none."""
        there = np.flatnonzero(np.asarray(images.is_valid()))
        some = batch if len(there) == len(batch) else batch.take(there)
        row = {name: values.take(pa.array(there)) for name, values in given.items()}
        try:
            found = evaluate(expression, row_of(some, row, expression))
        except EvaluationError as error:
            raise StepFailed("expression", str(error)) from error
        if pa.types.is_null(found.type):
            found = found.cast(pa.string())
        place = np.full(len(batch), -1, np.int64)
        place[there] = np.arange(len(there))
        return found.take(pa.array(place, mask=place < 0))

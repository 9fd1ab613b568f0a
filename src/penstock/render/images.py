"""Images of rows as JSON objects: values from the source's own text, columns that were not sent left out.

`json_text.py` knows Arrow's types; for a column that is carried as its source's text (`decode/verbatim.py`), the
source's dialect knows how that is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.dialect import dialect_named
from penstock.decode.verbatim import is_verbatim, typed
from penstock.model.table import ColumnType
from penstock.render.event import Events
from penstock.render.json_text import JsonRows, json_texts

UNCHANGED_TOAST = "__unchanged_toast__"
WRITTEN = ColumnType(0, "json", carried_as="json")  # of a column that a processor wrote: its values are JSON already


class ImageWriter:
    """Write images of one table. With `raw`, values are as close to the source's text as JSON allows."""

    def __init__(self, types: Mapping[str, ColumnType], dialect: str, *, raw: bool = False) -> None:
        self._types, self._dialect, self._raw = types, dialect_named(dialect), raw

    def column(self, name: str, values: pa.Array) -> pa.Array:
        """Return the JSON of one column; null where the value is null."""
        type = self._types.get(name)
        if type == WRITTEN:
            return values
        if type is None or not is_verbatim(type):
            return json_texts(values)
        return self._dialect.json_texts(typed(type), values, raw=self._raw)

    def texts(self, name: str, values: pa.Array) -> pa.Array:
        """Return one column as plain text, for topics and headers: a JSON string without its quotes and escapes."""
        type = self._types.get(name)
        if type == WRITTEN:
            return pc.utf8_trim(values, '"')
        if (type is not None and is_verbatim(type)) or pa.types.is_string(values.type):
            return values
        return pc.utf8_trim(json_texts(values), '"')

    def objects(self, images: pa.StructArray, names: Sequence[str] | None = None) -> pa.Array:
        """Return an object per image with these columns, all by default; null where there is no image."""
        if images.null_count == len(images):
            return pa.nulls(len(images), pa.string())
        wanted = [field.name for field in images.type] if names is None else list(names)
        if not images.null_count:
            return self._written(images, wanted)
        valid = np.asarray(images.is_valid())
        written = self._written(images.filter(pa.array(valid)), wanted)
        return written.take(pa.array(np.cumsum(valid) - 1, mask=~valid))

    def _written(self, images: pa.StructArray, names: Sequence[str]) -> pa.Array:
        columns = dict(zip((field.name for field in images.type), images.flatten(), strict=True))
        rows = JsonRows()
        for number, name in enumerate(names):
            rows.name(name, first=not number).texts(self.column(name, columns[name]))
        return rows.text("}" if names else "{}").joined(len(images))


def before_texts(events: Events, writer: ImageWriter) -> pa.Array:
    """Return old images with what the source sends of them: whole rows, or their keys."""
    if events.before.null_count == len(events):
        return pa.nulls(len(events), pa.string())
    full = events.before_is_full & np.asarray(events.before.is_valid())
    names = [field.name for field in events.before.type if field.name in events.key]
    if not full.any():
        return writer.objects(events.before, names)
    if full.sum() == len(events) - events.before.null_count:
        return writer.objects(events.before)
    return pc.if_else(pa.array(full), writer.objects(events.before), writer.objects(events.before, names))


def unsent(unchanged: pa.ListArray, name: str) -> npt.NDArray[np.bool_]:
    """Return for which rows a column is among those that were not sent. `unchanged` are lists of names."""
    named = np.asarray(pc.equal(unchanged.flatten(), name))
    lacks = np.zeros(len(unchanged), np.bool_)
    lacks[np.asarray(pc.list_parent_indices(unchanged))[named]] = True
    return lacks


def after_texts(events: Events, writer: ImageWriter, *, name_unsent: bool = False) -> pa.Array:
    """Return new images without the columns that were not sent: they are not null, they are not known.

    With `name_unsent`, an image names them in UNCHANGED_TOAST."""
    texts = writer.objects(events.after)
    if events.unchanged.null_count == len(events):
        return texts
    at = np.flatnonzero(np.asarray(events.unchanged.is_valid()))
    lacking: dict[tuple[str, ...], list[int]] = {}
    for row, names in zip(at.tolist(), events.unchanged.take(pa.array(at)).to_pylist(), strict=True):
        if names:
            lacking.setdefault(tuple(names), []).append(row)
    for names, rows in lacking.items():
        sent = [field.name for field in events.after.type if field.name not in names]
        mask = np.zeros(len(events), np.bool_)
        mask[rows] = True
        written = writer.objects(events.after.take(pa.array(rows)), sent)
        if name_unsent:
            word = JsonRows().name(UNCHANGED_TOAST, first=not sent).value(list(names)).text("}").joined(1)[0].as_py()
            written = pc.binary_join_element_wise(pc.utf8_slice_codeunits(written, 0, -1) if sent else "", word, "")
        texts = pc.replace_with_mask(texts, pa.array(mask), written)
    return texts

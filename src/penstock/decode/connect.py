"""Columns as Kafka Connect has them: a schema and values in that schema's physical form. Debezium's records are these.

A dialect makes them (`connect_column`); `render/debezium.py` puts them together. Physical forms are Arrow's: int16 to
int64, float, double, bool, string, binary, lists and structs of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class ConnectType:
    """What a field is. `name` says what its physical type stands for, such as `io.debezium.time.Date`."""

    arrow: pa.DataType
    type: str  # Connect's word for the physical type
    name: str = ""
    version: int = 1  # 0: none
    parameters: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, ConnectType, bool], ...] = ()  # of a struct: name, type, optional
    items: ConnectType | None = None  # of an array
    doc: str = ""
    default: str = ""

    def schema(self, *, optional: bool, field: str | None = None) -> dict[str, Any]:
        """Return it as JsonConverter writes it with `schemas.enable`."""
        found: dict[str, Any] = {"type": self.type}
        if self.type == "struct":
            found["fields"] = [one.schema(optional=maybe, field=name) for name, one, maybe in self.fields]
        if self.items is not None:
            found["items"] = self.items.schema(optional=True)
        found["optional"] = optional
        if self.name:
            found |= {"name": self.name} | ({"version": self.version} if self.version else {})
        if self.doc:
            found["doc"] = self.doc
        if self.parameters:
            found["parameters"] = dict(self.parameters)
        if self.default:
            found["default"] = self.default
        return found if field is None else found | {"field": field}


@dataclass(frozen=True)
class ConnectColumn:
    """Values of one column. `failed` are rows whose value has no such form: they are null."""

    type: ConnectType
    values: pa.Array
    failed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

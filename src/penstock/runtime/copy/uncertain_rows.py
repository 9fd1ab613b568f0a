"""Rows of a copy whose cells are not to be believed yet, while the log is replayed over it (`catch_up`).

An update whose unchanged cells were not sent takes them from the copy. As long as the replay has not passed the
snapshots of all ranges, the copy may have no row of that key, or, where keys change, another row of it. Such a row is
**in doubt**, and so is every row that takes cells from one. A later image that brings all cells, a delete or a truncate
ends the doubt; what is left of it is read again by key. docs/copy.md says why that is exact.

`UncertainRow` goes to the tasks of a batch, each returns its own part of it; `UncertainRows` is the driver's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.schema import arrow_schema
from penstock.destinations.contract import WrittenPart
from penstock.fold.keys import encode_keys
from penstock.fold.net_effect import NetEffect
from penstock.model.table import TableSchema


@dataclass(frozen=True)
class Doubted:
    """What one task did to the doubt."""

    rows: pa.Table  # keys of rows that are in doubt from now on, as columns
    ended: pa.Array  # encoded keys that were in doubt, and that it touched


@dataclass(frozen=True)
class UncertainRow:
    """What is in doubt before a batch. With `any_fetched`, every cell taken from the copy may be another row's."""

    schema: TableSchema
    keys: pa.Array  # encoded
    any_fetched: bool

    def after(self, net: NetEffect, part: WrittenPart) -> Doubted:
        rows = [np.asarray(part.unresolved_rows, np.int64)]
        for fetch in net.fetches:
            unsure = fetch.rows if self.any_fetched else fetch.rows[np.asarray(pc.is_in(fetch.keys, self.keys))]
            rows.append(unsure)
        numbers = pa.array(np.unique(np.concatenate(rows)))
        if net.truncated or net.touched_keys is None:
            ended = self.keys
        else:
            ended = self.keys.filter(pc.is_in(self.keys, net.touched_keys))
        return Doubted(net.upserts.select(list(self.schema.key)).take(numbers), ended)


class UncertainRows:
    """The keys in doubt of one table."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self.rows: pa.Table = arrow_schema(schema).empty_table().select(list(schema.key))

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.rows.nbytes)

    @property
    def keys(self) -> pa.Array:
        return encode_keys([self.rows[name] for name in self._schema.key])

    def before(self, *, any_fetched: bool) -> UncertainRow:
        return UncertainRow(self._schema, self.keys, any_fetched)

    def take(self, results: Iterable[Doubted | None]) -> None:
        for result in results:
            if result is not None:
                self.drop(result.ended)
                self.rows = pa.concat_tables([self.rows, result.rows])

    def drop(self, keys: pa.Array) -> None:
        """Remove these encoded keys, which are no longer in doubt."""
        self.rows = self.rows.filter(pc.invert(pc.is_in(self.keys, keys)))

"""What columns of an Iceberg table can be, where Spark reads them too.

Iceberg has no 16-bit integer and at most 38 digits. It has a time of day, which Spark cannot read. Columns are widened
by Iceberg's own rules of schema evolution.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.model.type_map import TypeMap

ICEBERG_TYPES = TypeMap(
    int16=False,
    time=False,
    digits=38,
    any_number="decimal(38,18)",
    widenings=frozenset({(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}),
)

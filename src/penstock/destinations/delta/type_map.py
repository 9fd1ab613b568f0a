"""What columns of a Delta table can be.

Delta has a 16-bit integer; smallint becomes a 32-bit one all the same, for a column that is widened later shuts out
readers that do not know the feature. There is no time of day, and at most 38 digits.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.model.type_map import TypeMap

DELTA_TYPES = TypeMap(
    int16=False,
    time=False,
    digits=38,
    any_number="decimal(38,18)",
    widenings=frozenset({(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}),
)

"""The behaviour suites that penstock holds its own parts to, for destinations and stores that users write.

They are made for pytest: `penstock[testing]` brings it. docs/write-a-destination.md shows how they are used.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "penstock.testing.destination",
    "penstock.testing.store_findings",
    "penstock.testing.store_tables",
    "penstock.testing.tables",
)

from penstock.testing.destination import DestinationSuite, destination_suite  # noqa: E402 - after the rewriting
from penstock.testing.store import StoreSuite, store_suite  # noqa: E402
from penstock.testing.tables import TableSuite, table_suite  # noqa: E402

__all__ = ["DestinationSuite", "StoreSuite", "TableSuite", "destination_suite", "store_suite", "table_suite"]

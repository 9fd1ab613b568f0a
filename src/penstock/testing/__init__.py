"""The behaviour suites that penstock holds its own parts to, for destinations and stores that users write.

They are made for pytest: `penstock[testing]` brings it. docs/write-a-destination.md shows how they are used.
"""

from __future__ import annotations

from penstock.testing.destination import DestinationSuite, destination_suite

__all__ = ["DestinationSuite", "destination_suite"]

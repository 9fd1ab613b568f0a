"""The names that programs may import from penstock, and that each is documented and in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock
from penstock import testing

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text()
NAMES = [
    *("ACCEPTED", "DURABLE", "Delivery", "Destination", "Events"),
    *("Begin", "Commit", "Ddl", "Message", "Relation"),
    *("Column", "Delete", "Event", "Insert", "Read", "Table", "TableId", "Truncate", "Unsupported", "Update"),
    *("CommitUnknown", "DestinationUnreachable", "Overtaken", "PenstockError", "RecordRefused", "TableError"),
    *("MemoryStore", "Pipeline", "Store", "TableDestination"),
]


def test_public_names_are_these_and_each_is_in_the_docs() -> None:
    assert sorted(penstock.__all__) == sorted(["__version__", *NAMES])
    assert sorted(testing.__all__) == [
        *("DestinationSuite", "StoreSuite", "TableSuite"),
        *("destination_suite", "store_suite", "table_suite"),
    ]
    for name in (*NAMES, *testing.__all__):
        assert f"`{name}`" in PAGE, f"docs/library.md says nothing of {name}"


def test_each_name_can_be_had() -> None:
    for name in NAMES:
        assert getattr(penstock, name) is not None
    assert set(NAMES) <= set(dir(penstock))


def test_importing_penstock_brings_nothing_that_workers_do_not_need() -> None:
    check = "import sys, penstock; sys.exit(any(name in sys.modules for name in ('pyspark', 'pyarrow', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

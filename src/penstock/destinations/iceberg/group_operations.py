"""Table operations that hold a commit back, and the step that makes several of them visible at once, in Java.

Iceberg commits a table by writing a new metadata file and moving the catalog's pointer to it. `Staged` does the first
half. `move` does the second for many tables: in a JDBC catalog the pointers are rows of one table, so one SQL
transaction moves them all, each only if it still is what the commit was made of. A REST catalog writes metadata files
itself: there `Staged` keeps the change, and `move` is one request with the changes of all tables (`commitTransaction`),
each with what it requires of its table. Where that request ends without an answer, nobody can say what it did; where
it is refused, a table may have been found changed by this very request, sent twice: then its own snapshot is there.

`Batch` makes the ordinary changes of many tables ready, rows, positional deletes and properties, by the same steps as
`commit.StrictTransaction`: over py4j these are some eighty calls a table, which cost more than the commits themselves.
Compiled by the compiler that comes with Spark.
"""

from __future__ import annotations

from pathlib import Path

CLASS = "dev.penstock.GroupOperations"
JAR = "penstock-group-commit-2.jar"
SOURCE = Path(__file__).with_name("GroupOperations.java").read_text("utf-8")

"""A file access for Iceberg that a local warehouse deserves, in Java, compiled by the compiler that comes with Spark.

Hadoop's local file system starts a `chmod` process for every file that it makes, and one more for its checksum: a
commit of four files starts eight processes, a compaction forty. And it makes missing folders all the way up: a
warehouse that is away would come back empty. This one does neither: it writes plain files, and nothing where there is
no warehouse. And it removes several files in one call: otherwise Iceberg gives them to its threads, and looks every
10 ms whether they are done.
"""

from __future__ import annotations

from pathlib import Path

CLASS = "dev.penstock.LocalFileIO"
JAR = "penstock-local-file-io-2.jar"
SOURCE = Path(__file__).with_name("LocalFileIO.java").read_text("utf-8")

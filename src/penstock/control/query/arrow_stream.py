"""A Spark DataFrame as Arrow batches, one partition after the other, so that no more than one is held at a time.

PySpark has `toArrow`, which holds everything, and `toLocalIterator`, whose rows are Python's own and know no year
behind 9999. This is the second's way with the first's data.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema


def arrow_batches(frame: DataFrame, rows: int) -> Iterator[pa.RecordBatch]:
    """In the order of the partitions and of the rows in each; at most `rows` in a batch."""
    spark = frame.sparkSession
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows))
    schema = to_arrow_schema(frame.schema)
    messages: RDD[bytes] = RDD(frame._jdf.toArrowBatchRdd().toJavaRDD(), spark.sparkContext, NoOpSerializer())
    for message in messages.toLocalIterator():
        yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)

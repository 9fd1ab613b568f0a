"""Read a pipeline's change log in Spark: `spark.read` and `spark.readStream` with `.format("penstock")`.

| module | what it does |
|---|---|
| `source.py` | the data source as PySpark knows it: options, offsets, partitions |
| `reading.py` | what a read is made of, without Spark: which segments of the log hold it, and what its rows are |
"""

"""Apply the change log to tables: plan batches, write them as one Spark job, commit each table once."""

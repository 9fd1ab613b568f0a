"""Delta Lake tables, written without Spark: log entries, deletion vectors and checkpoints of our own."""

"""What every lake needs, whatever its table format: key index, plans of writes, compaction, deferred deletes."""

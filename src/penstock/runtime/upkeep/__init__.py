"""Work between batches: log retention, table maintenance, the schema registry."""

"""Read destination tables: SQL, and events as JSON lines."""

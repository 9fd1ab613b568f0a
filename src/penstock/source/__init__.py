"""What a database is."""

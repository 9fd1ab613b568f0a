"""Postgres as a destination of tables."""

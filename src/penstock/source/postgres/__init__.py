"""Postgres as a source: discover, check, publication and slot, capture."""

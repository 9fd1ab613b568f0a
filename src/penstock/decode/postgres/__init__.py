"""Decode pgoutput messages and the text of Postgres values."""

"""Decode raw changes and values of a source to Arrow. No socket, no Spark, no clock."""

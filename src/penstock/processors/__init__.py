"""Processors: what becomes of events between decoding and rendering. Arrow in, Arrow out."""

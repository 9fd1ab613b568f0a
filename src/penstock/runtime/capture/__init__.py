"""Prepare the source, and run capture in a process of its own."""

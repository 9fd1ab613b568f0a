"""Gather and show how a pipeline is doing."""

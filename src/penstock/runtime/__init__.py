"""The pipeline: supervises capture, runs batches, maintains tables."""

"""Publish the change log to a stream destination: plan batches, render and publish shards on executors."""

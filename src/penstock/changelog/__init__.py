"""The durable change log: sealed segments, written once, listed, read and retained."""

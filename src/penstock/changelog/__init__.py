"""Keep the durable change log: sealed segments that are written once, listed, read and retained."""

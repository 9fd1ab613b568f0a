"""Where tables go: the contract, its in-memory twin, and Iceberg."""

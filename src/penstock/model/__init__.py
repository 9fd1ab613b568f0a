"""Define the values that every part shares: Position, TableId, TableSchema, raw changes, TableState."""

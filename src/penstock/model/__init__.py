"""Plain words shared by every part: Position, TableId, TableSchema, raw changes, TableState. Imports nothing of ours."""

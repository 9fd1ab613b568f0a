"""Plain words shared by every part: Position, TableId, TableSchema, raw changes, TableState; knows no other room."""

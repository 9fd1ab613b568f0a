"""What columns of a Postgres table can be: whatever the source's are, for values arrive as their source's own text."""

from __future__ import annotations

from penstock.model.type_map import TypeMap

POSTGRES_TYPES = TypeMap(own_texts=True)

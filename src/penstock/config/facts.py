"""Facts that `set` may name: `${source.name}`, `${table.schema}`, `${table.name}`.

They are known for each table, and not when the file is read, so they stand beside the variables of the environment,
whose names have no dots.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

FACTS = ("source.name", "table.schema", "table.name")
FACT = re.compile(r"\$\{(?P<name>[a-z]+\.[a-z_]+)\}")


def expand_facts(text: str, facts: Mapping[str, str]) -> str:
    """ValueError names a fact that there is not."""

    def value(found: re.Match[str]) -> str:
        if found["name"] not in facts:
            raise ValueError(f"names ${{{found['name']}}}; allowed are {', '.join(f'${{{fact}}}' for fact in FACTS)}")
        return facts[found["name"]]

    return FACT.sub(value, text)

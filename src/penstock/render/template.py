"""Templates of topics, keys and headers: `${source.schema}.${source.table}`, compiled when the pipeline file is read.

| name                                                       | stands for                                              |
|------------------------------------------------------------|---------------------------------------------------------|
| `source.name`, `source.db`, `source.schema`, `source.table`| where the event comes from                              |
| `tenant`                                                   | the pipeline's tenant                                   |
| `op`                                                       | insert, update, delete, truncate, read                  |
| `key`                                                      | the row's key as JSON, as records have it by default    |
| `after.x`                                                  | column x of the new row; of a delete, of the old row    |
| `before.x`                                                 | column x of the old row; where there is none, of the new|

A template is null for a record if one of its names is: of a header that means that the record has none, of a key that
it has none, and a record without a topic is a dead letter. `penstock check` refuses columns that a table does not
publish (`unpublished`), and those that its deletes do not have (`unsent_by_deletes`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.table import TableSchema

SOURCE_NAMES = ("source.name", "source.db", "source.schema", "source.table", "tenant")
PLAIN_NAMES = (*SOURCE_NAMES, "op", "key")
IMAGES = ("before", "after")
TEMPLATE_NAME = re.compile(r"\$\{(?P<name>op|key|tenant|[a-z]+\.[^}]+)\}")  # never a variable of the environment
_ANY = re.compile(r"\$\{([^}]*)\}?")


@dataclass(frozen=True)
class Template:
    """Constant texts and names in turn: `parts` has a text at even places and a name at odd ones."""

    text: str
    parts: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.parts[1::2]

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The columns it names, each with its image."""
        pairs = (name.partition(".") for name in self.names)
        return tuple((image, column) for image, _, column in pairs if image in IMAGES)

    @property
    def names_rows(self) -> bool:
        """Whether it names anything that only a change of a row has."""
        return any(name not in SOURCE_NAMES for name in self.names)

    def filled(self, values: Mapping[str, pa.Array | str], rows: int) -> pa.Array:
        """Return the text for each row, null where one of the names is null."""
        parts = [values[part] if number % 2 else part for number, part in enumerate(self.parts)]
        if all(isinstance(part, str) for part in parts):
            return pa.repeat(pa.scalar("".join(parts), pa.string()), rows)
        return pc.binary_join_element_wise(*parts, "")


def compiled(text: str) -> Template:
    """Return the template. ValueError names what is unknown in it, and what may be written."""
    parts: list[str] = []
    at = 0
    for found in _ANY.finditer(text):
        name = found[1]
        if not found[0].endswith("}"):
            raise ValueError("has ${ without its }")
        image, dot, column = name.partition(".")
        if name not in PLAIN_NAMES and not (image in IMAGES and dot and column):
            allowed = ", ".join(f"${{{one}}}" for one in PLAIN_NAMES)
            raise ValueError(f"names ${{{name}}}; allowed are {allowed}, ${{before.COLUMN}} and ${{after.COLUMN}}")
        parts += [text[at : found.start()], name]
        at = found.end()
    return Template(text, (*parts, text[at:]))


def unpublished(template: Template, shown: Collection[str]) -> list[str]:
    """Return the columns that the template names and a table does not publish. `shown` are those that it does."""
    return [column for _, column in template.columns if column not in shown]


def unsent_by_deletes(template: Template, schema: TableSchema) -> list[str]:
    """Return the columns that the template names and the table's deletes do not have: they send the key alone."""
    if schema.identity == "full":
        return []
    return [column for _, column in template.columns if column not in schema.key]

"""What a table's rows were made under: the mode, `where`, `columns`, `set` and the masks' salt of its rule, as text.

A destination keeps the text beside the rows and replaces it in the same step as a copy. When the file says something
else later, `changes` names the differences. The salt is a secret: its digest is kept. `types` are not part of the
text: the structure that a table follows has them, column by column (`retyped`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from penstock.model.feed import ColumnChoice, Feed, Mode
from penstock.model.processor import ProcessorSpec
from penstock.model.table import TableSchema

SALT_DIGITS = 16


def rule_text(feed: Feed) -> str:
    """Return the rule of a feed, as destinations keep it."""
    projection = feed.projection
    digest = hashlib.sha256(f"penstock mask_salt {projection.salt}".encode()).hexdigest()[:SALT_DIGITS]
    return json.dumps(
        {
            "mode": str(feed.mode),
            "where": projection.where,
            "columns": {choice.column: _action(choice) for choice in projection.columns},
            "set": dict(projection.constants),
            "salt": digest if projection.salt else "",
            **({"processors": [_processor(one) for one in feed.processors]} if feed.processors else {}),
        },
        sort_keys=True,
        ensure_ascii=False,
    )


def changes(before: str, after: str) -> list[str]:
    """Say in words what the file has changed since the table was copied. The mode is not among them."""
    was, now = json.loads(before), json.loads(after)
    told = []
    if was["where"] != now["where"]:
        told.append(f"`where` changed from {_quoted(was['where'])} to {_quoted(now['where'])}")
    for column in sorted({*was["columns"], *now["columns"]}):
        old, new = was["columns"].get(column, "kept"), now["columns"].get(column, "kept")
        if old != new:
            told.append(f"column {column} was {old} and is now {new}")
    for name in sorted({*was["set"], *now["set"]}):
        told += _constant(name, was["set"], now["set"])
    if was.get("processors", []) != now.get("processors", []):
        told.append("`processors` changed")
    if was["salt"] and now["salt"] and was["salt"] != now["salt"]:
        told.append("`mask_salt` changed")
    return told


def mode_of(text: str) -> Mode:
    return Mode(json.loads(text)["mode"])


def newly_hidden(before: str, after: str) -> list[str]:
    """Columns whose values could be read before and are masked or dropped now: older snapshots still hold them."""
    was, now = json.loads(before)["columns"], json.loads(after)["columns"]
    return sorted(column for column, action in now.items() if _hides(action) and not _hides(was.get(column, "kept")))


def retyped(before: TableSchema, after: TableSchema) -> list[str]:
    """Columns that the file now carries as another type than the table has them. Columns are told apart by number."""
    was = {column.number or column.name: column for column in before.columns}
    told = []
    for column in after.columns:
        old = was.get(column.number or column.name)
        same = old is not None and old.type.oid == column.type.oid
        if old is not None and same and old.type.carried_as != column.type.carried_as:
            told.append(_retyped(column.name, old.type.carried_as, column.type.carried_as))
    return told


def carried_types(schema: TableSchema) -> dict[str, str]:
    """Return what each column is carried as, by name; "" where the file chooses nothing."""
    return {column.name: column.type.carried_as for column in schema.columns}


def noted(feed: Feed, schema: TableSchema) -> str:
    """Return what the state store keeps, so that `check` needs no Spark: rule, types of columns, target."""
    return json.dumps({"rule": rule_text(feed), "types": carried_types(schema), "target": str(feed.target)})


def retyped_by_name(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Do as `retyped` does, where only names are known."""
    return [
        _retyped(name, before[name], after[name])
        for name in sorted(before.keys() & after)
        if before[name] != after[name]
    ]


def _retyped(name: str, before: str, after: str) -> str:
    default = "its default type"
    return f"`types` changed for column {name}, from {before or default} to {after or default}"


def _processor(spec: ProcessorSpec) -> dict[str, Any]:
    """Return what a processor does; where the file lies that names it does not matter."""
    settings = {name: value for name, value in json.loads(spec.settings).items() if name != "folder"}
    return {"type": spec.type, "settings": settings, "on_error": spec.on_error}


def _action(choice: ColumnChoice) -> str:
    if choice.dropped:
        return "dropped"
    masked = "masked" if choice.masked else ""
    return " and ".join(filter(None, [masked, f"renamed to {choice.name}" if choice.name else ""])) or "kept"


def _hides(action: str) -> bool:
    return action.startswith(("masked", "dropped"))


def _constant(name: str, was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    if name not in was:
        return [f"`set` has {name} now"]
    if name not in now:
        return [f"`set` no longer has {name}"]
    same = was[name] == now[name] and type(was[name]) is type(now[name])
    return [] if same else [f"`set` changed {name} from {was[name]!r} to {now[name]!r}"]


def _quoted(where: str) -> str:
    return f"({where})" if where else "nothing"

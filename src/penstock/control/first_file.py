"""Write a first pipeline file for a database: what is there, which modes fit, what has to be fixed, as comments.

The file never has the URL's password: a variable of the environment stands for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from penstock.config.kuvasz_url import address_of
from penstock.config.model import Pipeline
from penstock.control.check.view import Found, by_level
from penstock.control.check.whole import Checked, check_pipeline
from penstock.control.discovery import discovered
from penstock.errors import UsageError

MOST_TABLES = 200  # named in comments
PREFIX = "SOURCE"
_TYPES = {"postgresql": "postgres", "postgres": "postgres", "mysql": "mysql", "mariadb": "mysql"}
_WORDS = {"error": "ERROR", "warning": "warning", "note": "note"}


@dataclass(frozen=True)
class FirstFile:
    """`variables` must be set in the environment before the file is used; `errors` must be fixed before a run."""

    text: str
    name: str
    tables: int
    errors: int
    variables: tuple[str, ...]


def first_file(url: str, name: str | None, file: Path) -> FirstFile:
    """Look at the database and return a file for it.

    UsageError when the URL is none, SourceUnreachable when nobody answers there.
    """
    scheme, parts = url.partition("://")[0], _parts(url)
    kind = _TYPES.get(scheme)
    if kind is None or parts is None:
        raise UsageError(
            "this is no URL of a database", "Give postgresql://user@host:5432/database or mysql://user@host/database"
        )
    chosen = name or _name(unquote(parts.path.strip("/")) or unquote(parts.username or ""))
    everything = _pipeline(chosen, kind, url, [{"match": "*.*"}], file)
    tables: list[dict[str, Any]] = discovered(everything)[0]["tables"]
    rules = [{"match": match} for match in _matches(tables)] or [{"match": "*.*"}]
    checked = check_pipeline(_pipeline(chosen, kind, url, rules, file))
    address, variables = _without_password(url, kind)
    text = "\n".join(_lines(chosen, kind, address, variables, tables, rules, checked, file)) + "\n"
    errors = sum(one.finding.level == "error" for one in checked.found)
    return FirstFile(text, chosen, len(tables), errors, variables)


def _parts(url: str) -> Any:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _name(database: str) -> str:
    name = re.sub(r"[^a-z0-9_]+", "_", database.lower()).strip("_")[:40]
    return name if name[:1].isalpha() else f"p_{name}".rstrip("_")


def _pipeline(name: str, kind: str, url: str, rules: Sequence[Mapping[str, str]], file: Path) -> Pipeline:
    document = {
        "version": 1,
        "name": name,
        "source": {"type": kind, "url": url},
        "tables": list(rules),
        "destinations": [{"type": "iceberg", "warehouse": str(file.parent / "warehouse")}],
    }
    try:
        return Pipeline.model_validate(document, context={"file": file, "folder": file.parent})
    except ValidationError as invalid:
        first = invalid.errors(include_input=False, include_url=False)[0]
        place = "the URL" if "url" in first["loc"] else "the name"
        raise UsageError(f"{place} {first['msg'].removeprefix('Value error, ')}", "See docs/config.md") from None


def _matches(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a pattern for each schema. Of one whose name has characters that patterns read otherwise, all schemas."""
    schemas = dict.fromkeys(str(table["table"]).partition(".")[0] for table in tables)
    plain = all(re.fullmatch(r"\w+", schema) for schema in schemas)
    return [f"{schema}.*" for schema in schemas] if plain else ["*.*"]


def _without_password(url: str, kind: str) -> tuple[str, tuple[str, ...]]:
    if kind == "postgres":
        given = address_of(url, PREFIX)
        return given.text, tuple(name for name, _ in given.variables)
    scheme, _, rest = url.partition("://")
    authority, slash, more = rest.partition("/")
    login, at, host = authority.rpartition("@")
    user, colon, password = login.partition(":")
    if not password:
        return url, ()
    return f"{scheme}://{user}{colon}${{{PREFIX}_PASSWORD}}{at}{host}{slash}{more}", (f"{PREFIX}_PASSWORD",)


def _lines(
    name: str,
    kind: str,
    address: str,
    variables: Sequence[str],
    tables: Sequence[Mapping[str, Any]],
    rules: Sequence[Mapping[str, str]],
    checked: Checked,
    file: Path,
) -> Iterator[str]:
    version = checked.seen[0].version if checked.seen else kind
    of_tables = {str(one.finding.table): one for one in by_level(checked.found) if one.finding.table is not None}
    yield f"# A pipeline from {version} into Iceberg tables. docs/config.md explains every key."
    yield f"# Look what is missing: penstock check {file.name}      Run it: penstock run {file.name}"
    for variable in variables:
        yield f"# Set {variable} in the environment first; special characters of a password as %XX."
    problems = [one for one in by_level(checked.found) if one.finding.table is None]
    if problems:
        yield "#"
        yield "# What `penstock check` says of the source and this machine now:"
        for one in problems:
            yield from _finding(one, "#   ")
    yield from ("", "version: 1", f"name: {name}", "", "source:", f"  type: {kind}", f"  url: {json.dumps(address)}")
    if kind == "postgres":
        yield f"  # slot: penstock_{name}           # made by the first run; it keeps WAL until it is dropped"
        yield f"  # publication: penstock_{name}    # made by the first run, if the role may"
    yield from ("", "tables:")
    yield "  # Modes: clone (equal to the source, the default), append (never deletes), history (every"
    yield "  # version of a row), events (every change a row). The first rule that matches a table counts."
    for rule in rules:
        schema = rule["match"].removesuffix(".*")
        own = [one for one in tables if rule["match"] == "*.*" or str(one["table"]).partition(".")[0] == schema]
        yield f"  - match: {json.dumps(rule['match'])}"
        yield "    mode: clone"
        yield "    # exclude: [...]                 # names or patterns to leave out"
        yield f"    # {len(own)} table{'s' if len(own) != 1 else ''} now:"
        for table in own[:MOST_TABLES]:
            yield f"    #   {_comment(table['table'])}: {_fits(table)}"
            if table["table"] in of_tables:
                yield from _finding(of_tables[table["table"]], "    #       ")
        if len(own) > MOST_TABLES:
            yield f"    #   and {len(own) - MOST_TABLES:,} more"
    yield from ("", "destinations:", "  - name: lake", "    type: iceberg", "    warehouse: ./warehouse")
    yield "  # Others, also side by side: type: delta, postgres, kafka, redis, nats, http, files. For example:"
    yield "  # - name: events"
    yield "  #   type: kafka"
    yield "  #   brokers: localhost:9092"


def _fits(table: Mapping[str, Any]) -> str:
    columns = f"{len(table['columns'])} column{'s' if len(table['columns']) != 1 else ''}"
    if table["key"]:
        return f"{columns}, key ({_comment(', '.join(table['key']))}): every mode fits"
    return f"{columns}, no key: append and events fit; clone with whole old rows (REPLICA IDENTITY FULL)"


def _finding(one: Found, indent: str) -> Iterator[str]:
    yield f"{indent}{_WORDS[one.finding.level]}: {_comment(one.finding.what)}"
    if one.finding.fix:
        yield f"{indent}  {_comment(one.finding.fix)}"


def _comment(text: object) -> str:
    """Return text that stays in its comment, whatever it holds."""
    return " ".join("".join(one if one.isprintable() else " " for one in str(text)).split())

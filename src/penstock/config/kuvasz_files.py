"""Read kuvasz-streamer's own files: its map of databases and tables, and the settings of its service.

The values are those that kuvasz-streamer would see; `kuvasz_pipeline` decides what becomes of them. Every mistake is a
ConfigError that names the file and the line, never a value: URLs in these files hold passwords.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import ConfigError

_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"
_EXAMPLE = "It is a list of databases, each with `database`, `urls` and `tables`"
_CORRECT = "Correct it and import it again"

Entries = dict[str, tuple[int, yaml.Node]]


@dataclass(frozen=True)
class Unknown:
    """A key that kuvasz-streamer does not know, and its line."""

    line: int
    key: str


@dataclass(frozen=True)
class Url:
    """One server that holds the database."""

    line: int
    url: str = field(repr=False)
    sid: str
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True)
class Table:
    """One table of the map, by the name that the map gives it. What the map leaves out is empty."""

    line: int = field(compare=False)
    name: str
    type: str
    target: str
    filter: str
    set: tuple[tuple[str, str], ...]
    insert: str
    partitions_regex: str
    unknown: tuple[Unknown, ...] = field(compare=False)


@dataclass(frozen=True)
class Database:
    """The tables of a database, and all servers that hold it."""

    line: int
    name: str
    urls: tuple[Url, ...]
    tables: tuple[Table, ...]
    unknown: tuple[Unknown, ...]


@dataclass(frozen=True)
class Service:
    """The settings of the service that concern tables. `others` names the rest, as `section.key` or `[section]`."""

    url: str = field(default="", repr=False)
    schema: str = "public"
    default_schema: str = "public"
    sync_rate: float | None = None
    map_database: bool = False
    others: tuple[str, ...] = ()


def read_map(path: Path) -> tuple[Database, ...]:
    """Return the databases of a map, in its order."""
    text = _read(path)
    try:
        root = yaml.SafeLoader(text).get_single_node()
        if root is None:
            raise ConfigError(f"{path} is empty", _EXAMPLE)
        return _Map(path).databases(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ConfigError(f"{path}{line} is not valid YAML: {problem}", _CORRECT) from None


def read_service(path: Path) -> Service:
    """Return what a kuvasz-streamer.toml says."""
    try:
        sections = tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", _CORRECT) from None
    database, app = (_section(path, sections, name) for name in ("database", "app"))
    others = [f"[{name}]" for name in sections if name not in ("database", "app")]
    others += [f"database.{key}" for key in database if key not in ("url", "schema")]
    read = ("default_schema", "sync_rate", "map_file", "map_database")
    others += [f"app.{key}" for key in app if key not in read]
    rate = app.get("sync_rate")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e18):
        raise ConfigError(f"{path}: app.sync_rate must be a number of rows per second", _CORRECT)
    return Service(
        url=_setting(path, "database", database, "url"),
        schema=_setting(path, "database", database, "schema") or "public",
        default_schema=_setting(path, "app", app, "default_schema") or "public",
        sync_rate=rate,
        map_database=bool(_setting(path, "app", app, "map_database")),
        others=tuple(others),
    )


def _section(path: Path, sections: dict[str, Any], name: str) -> dict[str, Any]:
    section = sections.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: {name} must be a section", _CORRECT)
    return section


def _setting(path: Path, name: str, section: dict[str, Any], key: str) -> str:
    value = section.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {name}.{key} must be text", _CORRECT)
    return value


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", "Name kuvasz-streamer's file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder", "Name kuvasz-streamer's file in it") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", "Save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "Check the file's permissions") from None


class _Map:
    """A map's nodes as values. Scalars are the text that the file has, as kuvasz-streamer reads them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loader = yaml.SafeLoader("")  # for merge keys
        self._seen: dict[int, Entries] = {}

    def databases(self, root: yaml.Node) -> tuple[Database, ...]:
        found = tuple(self._database(node) for node in self._items(root, "the map"))
        if not found:
            raise ConfigError(f"{self._path} has no database", _EXAMPLE)
        return found

    def _database(self, node: yaml.Node) -> Database:
        entries = self._entries(node, "a database")
        name = self._text(entries, "database")
        if not name:
            raise self._error(node, "a database has no name: `database` is missing")
        urls = self._items(entries["urls"][1], f"`urls` of {name}") if "urls" in entries else []
        tables = self._entries(entries["tables"][1], f"`tables` of {name}") if "tables" in entries else {}
        return Database(
            node.start_mark.line + 1,
            name,
            tuple(self._url(url, name) for url in urls),
            tuple(self._table(table, line, value) for table, (line, value) in tables.items()),
            _unknown(entries, "database", "urls", "tables"),
        )

    def _url(self, node: yaml.Node, database: str) -> Url:
        entries = self._entries(node, f"an entry of `urls` of {database}")
        url = self._text(entries, "url")
        if not url:
            raise self._error(node, f"an entry of `urls` of {database} has no `url`")
        return Url(node.start_mark.line + 1, url, self._text(entries, "sid"), _unknown(entries, "url", "sid"))

    def _table(self, name: str, line: int, node: yaml.Node) -> Table:
        entries = self._entries(node, f"table {name}")
        known = ("type", "target", "filter", "insert", "partitions_regex")
        type, target, filter, insert, partitions_regex = (self._text(entries, key) for key in known)
        given = self._entries(entries["set"][1], f"`set` of table {name}") if "set" in entries else {}
        values = tuple((column, self._text(given, column)) for column in given)
        unknown = _unknown(entries, *known, "set")
        return Table(line, name, type, target, filter, values, insert, partitions_regex, unknown)

    def _text(self, entries: Entries, key: str) -> str:
        """Return a scalar as the file has it; empty when it is null or not there."""
        if key not in entries:
            return ""
        node = entries[key][1]
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"{key} must be text")
        return "" if node.tag == _NULL else str(node.value)

    def _items(self, node: yaml.Node, what: str) -> list[yaml.Node]:
        if node.tag == _NULL:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, f"{what} must be a list (lines that begin with -)")
        return list(node.value)

    def _entries(self, node: yaml.Node, what: str) -> Entries:
        if node.tag == _NULL:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{what} must be a mapping (lines of `key: value`)")
        if id(node) not in self._seen:  # an alias leads here again, and merge keys are flattened in place
            self._require_once(node, what)
            self._loader.flatten_mapping(node)
            self._seen[id(node)] = {key.value: (key.start_mark.line + 1, value) for key, value in node.value}
        return self._seen[id(node)]

    def _require_once(self, node: yaml.MappingNode, what: str) -> None:
        """Refuse keys that are there twice: kuvasz-streamer uses one of the two."""
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, f"a key of {what} must be text")
            if key.value in keys and key.tag != _MERGE:
                raise self._error(key, f"{what} has {key.value} twice")
            keys.add(key.value)

    def _error(self, node: yaml.Node, problem: str) -> ConfigError:
        return ConfigError(f"{self._path}:{node.start_mark.line + 1}: {problem}", f"{_EXAMPLE}. {_CORRECT}")


def _unknown(entries: Entries, *known: str) -> tuple[Unknown, ...]:
    return tuple(Unknown(line, key) for key, (line, _) in entries.items() if key not in known)

"""Write a pipeline file that does what a kuvasz-streamer map does.

`kuvasz_files` has read the map. The text is one that `load` accepts. What has no counterpart here stands in it as a
comment beside its place, and in `notes`. A table that would hold other rows than kuvasz-streamer's, if something were
left out, becomes a rule that is commented out: nobody gets rows that a filter kept back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from penstock.config.kuvasz_files import Database, Service, Table, Unknown, Url
from penstock.config.kuvasz_url import Address, address_of
from penstock.errors import UsageError

MODES = ("clone", "append", "history")
LONGEST_PIPELINE = 24  # with the longest source and what is around them, a slot's name has Postgres' 63
LONGEST_SOURCE = 28
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_FILTERED = "write it as `where` (docs/modes.md), then remove the # before this rule"
_COMPUTED = "a target's columns are the source's here; see `columns` and `set` in docs/modes.md, or use a view"
_BEFORE_THE_FIRST_RUN = {
    "append": "the first copy replaces the rows of this sid in {target}, also those that the source has deleted; keep"
    " them as docs/postgres.md says",
    "history": "a version in {target} counts as open if its kvsz_end is 9999-01-01 in UTC; if the server's time zone is"
    " another, correct it first as docs/postgres.md says",
}


@dataclass(frozen=True)
class Imported:
    """The pipeline file, and what it does not carry over: a line for each."""

    text: str
    notes: tuple[str, ...]
    rules: int  # that are not commented out


@dataclass(frozen=True)
class _Rule:
    """A rule of the file. `doubts` are reasons to leave it commented out."""

    table: Table
    match: str
    mode: str
    target: str
    doubts: tuple[str, ...]
    remarks: tuple[str, ...]
    asides: tuple[str, ...]  # in the file only


@dataclass
class _Page:
    """The lines of the file so far, and what is noted beside them."""

    path: Path
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *lines: str) -> None:
        self.lines += lines

    def comment(self, indent: int, text: str) -> None:
        self.lines.append(f"{' ' * indent}# {printable(text)}")

    def note(self, line: int | None, text: str) -> None:
        """Report something: `line` is the map's, None for what is not in it."""
        place = f"{self.path}:{line}: " if line is not None else ""
        self.notes.append(printable(f"{place}{text}"))

    def remark(self, indent: int, line: int | None, text: str) -> None:
        """Report something, and write it here."""
        self.comment(indent, text)
        self.note(line, text)

    def unknown(self, indent: int, keys: Iterable[Unknown], holder: str) -> None:
        for one in keys:
            self.remark(indent, one.line, f"not carried over: {holder}: {one.key} is no key of kuvasz-streamer's")


def imported(path: Path, databases: Sequence[Database], service: Service | None, wanted: str | None) -> Imported:
    """Return the pipeline of the database that is wanted, or of all if one pipeline can follow them.

    `service` is None if its file was not given: then the destination is a variable, and schemas are the defaults.
    UsageError says which databases there are, and what one of them lacks.
    """
    settings = service or Service()
    chosen = _chosen(path, databases, wanted)
    rules = _rules(chosen[0].tables, settings, _elsewhere(databases, chosen, settings))
    page = _Page(path)
    _head(page, chosen)
    pipeline = slug(chosen[0].name, LONGEST_PIPELINE, "db")
    page.add("version: 1", f"name: {scalar(pipeline)}", "sources:")
    _sources(page, pipeline, chosen)
    page.add("tables:")
    for rule in rules:
        _write_rule(page, rule)
    for database in chosen[1:]:  # their tables are the same, but for keys that mean nothing
        for table in database.tables:
            page.unknown(2, table.unknown, f"tables.{table.name} of database {database.name}")
    _destination(page, settings, service is not None)
    written = sum(not rule.doubts for rule in rules)
    return Imported("\n".join(page.lines) + "\n", tuple(page.notes), written)


def printable(text: str) -> str:
    """Return a text in one line, with nothing in it that YAML refuses."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def slug(text: str, longest: int, before: str) -> str:
    """Return a name of the pipeline file that is like the text. `before` goes before what is not a letter."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return (name if re.match("[a-z]", name) else f"{before}_{name}".rstrip("_"))[:longest].rstrip("_")


def scalar(text: str) -> str:
    """Return a text as a YAML value that the reader of pipeline files gives back as it is."""
    return _quoted(text.replace("${", "$${"))


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return printable(json.dumps(text, ensure_ascii=False))


def _chosen(path: Path, databases: Sequence[Database], wanted: str | None) -> list[Database]:
    names = ", ".join(dict.fromkeys(database.name for database in databases))
    found = [database for database in databases if wanted in (None, database.name)]
    if not found:
        raise UsageError(f"{path} has no database {wanted}", f"It has {names}")
    for database in found:
        for what, there in (("urls", database.urls), ("tables", database.tables)):
            if not there:
                raise UsageError(
                    f"{path}:{database.line}: database {database.name} has no {what}", "Add them to the map"
                )
    tables = {frozenset(database.tables) for database in found}
    sids = [url.sid for database in found for url in database.urls if url.sid]
    twice = next((sid for sid in sids if sids.count(sid) > 1), None)
    if len({database.name for database in found}) > 1 and (len(tables) > 1 or twice is not None):
        why = "their tables differ" if len(tables) > 1 else f"they share the sid {twice}"
        raise UsageError(
            f"{path} has databases {names}, which need a pipeline each: {why}",
            f"Import them one by one: penstock import kuvasz {path} --database {found[0].name} > {found[0].name}.yaml",
        )
    if len(tables) > 1 or twice is not None:
        why = "twice, with different tables" if len(tables) > 1 else f"with the sid {twice} twice"
        raise UsageError(f"{path} has database {found[0].name} {why}", "Correct the map and import it again")
    return found


def _elsewhere(databases: Sequence[Database], chosen: Sequence[Database], service: Service) -> dict[str, str]:
    """Return the targets of databases that are not imported, with the name of one that has it."""
    others = [database for database in databases if database not in chosen]
    return {_target(table, service): database.name for database in others for table in database.tables}


def _names(table: Table, service: Service) -> tuple[str, str]:
    """Return schema and name, as kuvasz-streamer takes a name apart."""
    before, dot, after = table.name.partition(".")
    return (before, after) if dot else (service.default_schema, table.name)


def _target(table: Table, service: Service) -> str:
    return f"{service.schema}.{table.target or _names(table, service)[1]}"


def _pattern(name: str) -> str:
    """Return a name as a part of a pattern that stands for it alone."""
    return name if not set(name) & set('".*%') else '"' + name.replace('"', '""') + '"'


def _rules(tables: Sequence[Table], service: Service, elsewhere: dict[str, str]) -> list[_Rule]:
    rules: list[_Rule] = []
    matched: set[str] = set()
    filled: dict[str, str] = {}
    for table in tables:
        schema, name = _names(table, service)
        match, target = f"{_pattern(schema)}.{_pattern(name)}", _target(table, service)
        mode = table.type or "clone"
        doubts = _doubts(table, target)
        if not schema or not name:
            doubts.append(f"{table.name} is no name of a table")
        if match in matched:
            doubts.append(f"{match} is in the map twice")
        if target in filled:
            doubts.append(f"{target} is also the target of {filled[target]}; give one of them another `target`")
        if target in elsewhere:
            doubts.append(
                f"{target} is also filled from database {elsewhere[target]}; one pipeline fills a table here, so give"
                " it another `target`"
            )
        matched.add(match)
        if not doubts:
            filled[target] = match
        remarks = [_BEFORE_THE_FIRST_RUN[mode].format(target=target)] if mode in _BEFORE_THE_FIRST_RUN else []
        if table.insert:
            remarks.append("not carried over: insert, which kuvasz-streamer reads and does not use")
        asides = [f"insert was {table.insert}"] if table.insert else []
        if table.partitions_regex:
            asides.append(f"partitions_regex was {table.partitions_regex}: partitions are found without it")
        rules.append(_Rule(table, match, mode, target, tuple(doubts), tuple(remarks), tuple(asides)))
    return rules


def _doubts(table: Table, target: str) -> list[str]:
    """Return why the table cannot be followed as it stands in the map."""
    doubts = []
    if table.type not in ("", *MODES):
        doubts.append(f"type {table.type} is none of {', '.join(MODES)}")
    if target.count(".") != 1 or set(target) & set("{}") or "" in target.split("."):
        doubts.append(f"target {target} cannot be written here: it must be one schema and one name, without braces")
    if table.filter:
        doubts.append(f"filter is an expression in CEL; {_FILTERED}")
    if table.set:
        doubts.append(f"set computes columns; {_COMPUTED}")
    return doubts


def _head(page: _Page, chosen: Sequence[Database]) -> None:
    names = ", ".join(database.name for database in chosen)
    page.comment(0, f"Made by `penstock import kuvasz` from {page.path.name}, database {names}.")
    page.comment(0, "Stop kuvasz-streamer before the first run: two programs must not write the same tables.")
    page.comment(
        0, "Next: set the variables that are named below, read the comments, run `penstock check` on this file."
    )
    for database in chosen:
        page.unknown(0, database.unknown, f"database {database.name}")


def _sources(page: _Page, pipeline: str, chosen: Sequence[Database]) -> None:
    taken: set[str] = set()
    for database in chosen:
        for url in database.urls:
            name = _free(slug(url.sid or database.name, LONGEST_SOURCE - 3, "sid"), taken)
            taken.add(name)
            _source(page, name, f"{pipeline}_{name}".upper(), database, url)
    if len(taken) == 1:
        page.comment(4, "if the tables lack the column sid: `source: {type: postgres, url: ...}` in place of this list")


def _free(name: str, taken: set[str]) -> str:
    """Return the name, with a number behind it if it is taken."""
    return next(one for one in (name, *(f"{name}_{n}" for n in range(2, 10_000))) if one not in taken)


def _source(page: _Page, name: str, prefix: str, database: Database, url: Url) -> None:
    old = f"kuvasz_{database.name}_{url.sid}".replace("-", "_")
    page.add(f"  - name: {scalar(name)}", "    type: postgres")
    page.comment(4, f"kuvasz-streamer's slot and publication here are {old}: drop both once penstock runs")
    _url(page, address_of(url.url, prefix), url.line, f"url of {name}")
    if url.sid:
        page.add(f"    sid: {scalar(url.sid)}")  # always text: that fits a column of any type
    else:
        page.remark(4, url.line, f"source {name} has no sid in the map: its rows carry {name}, not an empty text")
    page.unknown(4, url.unknown, f"source {name}")


def _url(page: _Page, address: Address, line: int | None, what: str) -> None:
    """Write a URL, with what its variables stand for."""
    for variable, meaning in address.variables:
        page.comment(4, f"set {variable}: {meaning}")
    if address.whole:
        page.note(
            line, f"{what} is not carried over: set {address.variables[0][0]} to the whole URL, with its password"
        )
    for option in address.left_out:
        if option == "replication":
            page.comment(4, "replication=… was here: penstock sets it by itself")
        else:
            page.remark(4, line, f"not carried over: option {option} in the {what}, which libpq does not have")
    page.add(f"    url: {_quoted(address.text)}")


def _write_rule(page: _Page, rule: _Rule) -> None:
    indent = 2 if rule.doubts else 4
    place = f"tables.{rule.table.name}"
    for doubt in rule.doubts:
        page.remark(2, rule.table.line, f"not carried over: {place}: {doubt}")
    if rule.table.filter:
        page.comment(2, f"filter was {rule.table.filter}")
    for column, expression in rule.table.set:
        page.comment(2, f"set was {column}: {expression}")
    mode = rule.mode if rule.mode in MODES else "clone"
    lines = [f"  - match: {scalar(rule.match)}", f"    mode: {mode}", f"    target: {scalar(rule.target)}"]
    lines += ["    history: kuvasz"] if mode == "history" else []
    page.add(*(f"  # {line[2:]}" if rule.doubts else line for line in lines))
    for remark in rule.remarks:
        page.remark(indent, rule.table.line, f"{place}: {remark}")
    for aside in rule.asides:
        page.comment(indent, aside)
    page.unknown(indent, rule.table.unknown, place)


def _destination(page: _Page, service: Service, given: bool) -> None:
    page.add("destinations:", "  - name: postgres", "    type: postgres")
    if service.url:
        _url(page, address_of(service.url, "DESTINATION"), None, "url of the destination")
    else:
        where = "is in kuvasz-streamer.toml: import with --conf, or" if not given else "is not in that file:"
        page.remark(4, None, f"the destination's URL {where} set DESTINATION_URL to it")
        page.add('    url: "${DESTINATION_URL}"')
    if not given:
        schemas = "schemas are taken to be public, kuvasz-streamer's default, at the sources and at the destination"
        page.remark(4, None, schemas)
    page.add("    create: false  # kuvasz-streamer's tables are there; `true` would make them")
    if service.sync_rate is not None:
        page.add("copy:", f"  max_rows_per_second: {service.sync_rate}  # sync_rate")
    for other in service.others:
        page.remark(0, None, f"not carried over: {other} of kuvasz-streamer's settings")
    if service.map_database:
        page.remark(0, None, "app.map_database is set: kuvasz-streamer used that database and not this map")

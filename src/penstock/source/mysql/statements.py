"""What a statement in the binlog does to tables, as far as row events do not say it. Not a parser of SQL.

TRUNCATE empties a table. An ALTER that leaves the values of all rows as they are (column_statements.py) says what
became of the columns. Any other ALTER, and RENAME, CREATE and DROP, make other tables of those that they name: such
tables are copied again. So is every table when a statement is not understood. An ALTER of indexes, comments and the
like does nothing.
INSERT, UPDATE and DELETE as statements (`binlog_format` is not ROW) are changes that nobody can follow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from penstock.model.column_change import ColumnChange
from penstock.model.table import TableId
from penstock.source.mysql.column_statements import NotUnderstood, Token, column_change

_TOKEN = re.compile(
    r"""(?P<skip>\s+|--[ \t][^\n]*|--$|\#[^\n]*|/\*(?![!M]).*?\*/)|(?P<open>/\*M?!\d*)|(?P<close>\*/)
      |(?P<name>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      |(?P<word>[\w$\u0080-\uffff@]+)|(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_HARMLESS = frozenset(
    [
        "GRANT",
        "REVOKE",
        "FLUSH",
        "ANALYZE",
        "OPTIMIZE",
        "REPAIR",
        "CHECK",
        "SET",
        "COMMENT",
        "CACHE",
        "KILL",
        "SAVEPOINT",
        "RELEASE",
        "INSTALL",
        "UNINSTALL",
    ]
)
_NOT_TABLES = frozenset(
    [
        "USER",
        "ROLE",
        "VIEW",
        "TRIGGER",
        "PROCEDURE",
        "FUNCTION",
        "EVENT",
        "SERVER",
        "LOGFILE",
        "TABLESPACE",
        "RESOURCE",
        "SPATIAL",
        "SEQUENCE",
        "PACKAGE",
        "INSTANCE",
        "DEFINER",
        "ALGORITHM",
        "SQL",
        "AGGREGATE",
        "UNDO",
        "DATABASE",
        "SCHEMA",
        "INDEX",
        "UNIQUE",
        "FULLTEXT",
    ]
)
_LIGHT = frozenset(
    [
        "ALGORITHM",
        "LOCK",
        "COMMENT",
        "AUTO_INCREMENT",
        "STATS_PERSISTENT",
        "STATS_AUTO_RECALC",
        "STATS_SAMPLE_PAGES",
        "ENABLE",
        "DISABLE",
        "NOWAIT",
        "WAIT",
        "ROW_FORMAT",
        "KEY_BLOCK_SIZE",
    ]
)
_INDEXES = frozenset(["INDEX", "KEY", "CONSTRAINT", "FOREIGN", "CHECK", "FULLTEXT", "SPATIAL", "UNIQUE"])


class Doing(Enum):
    EMPTIED = "emptied"
    ALTERED = "altered"  # its columns, and no value of them
    REPLACED = "replaced"
    UNKNOWN = "unknown"  # changes that row events do not have
    XA_ENDED = "XA ended"


@dataclass(frozen=True)
class Effect:
    """`table` is None where any table may be concerned, and has the name `*` where any of one database may."""

    doing: Doing
    table: TableId | None = None
    changes: tuple[ColumnChange, ...] = ()


class _Statement:
    def __init__(self, text: str, database: str) -> None:
        self._tokens: list[Token] = []
        self.is_conditional = False  # parts of it are for some versions of the server only
        for match in _TOKEN.finditer(text):
            kind, value = match.lastgroup or "", match[0]
            if kind in ("skip", "open", "close"):
                self.is_conditional |= kind == "open"
                continue
            if kind == "name":
                value = value[1:-1].replace("``", "`")
            elif kind == "text" and value.startswith('"'):  # a name under ANSI_QUOTES
                kind, value = "quoted", value[1:-1].replace('""', '"')
            self._tokens.append((kind, value))
        self._at, self._database = 0, database

    def peek(self) -> str:
        kind, value = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        return value.upper() if kind in ("word", "mark") else ""

    def next(self) -> str:
        found = self.peek()
        self._at += 1
        return found

    def take(self, *words: str) -> bool:
        if self.peek() in words:
            self._at += 1
            return True
        return False

    def take_exists(self) -> None:
        if self.take("IF"):
            self.take("NOT")
            self.take("EXISTS")

    def name(self) -> str:
        kind, value = self._tokens[self._at]
        if kind not in ("name", "word", "quoted"):
            raise IndexError
        self._at += 1
        return value

    def table(self) -> TableId:
        first = self.name()
        return TableId(first, self.name()) if self.take(".") else TableId(self._database, first)

    def tables(self) -> list[TableId]:
        found = [self.table()]
        while self.take(","):
            found.append(self.table())
        return found

    def parts(self) -> list[list[Token]]:
        """Return what is left, cut at commas outside of parentheses."""
        cut: list[list[Token]] = [[]]
        depth = 0
        for kind, value in self._tokens[self._at :]:
            depth += (kind == "mark") * ((value == "(") - (value == ")"))
            if (kind, value) == ("mark", ",") and depth == 0:
                cut.append([])
            else:
                cut[-1].append((kind, value))
        return [part for part in cut if part]

    @property
    def ended(self) -> bool:
        return self._at >= len(self._tokens)


def effects(database: str, text: str) -> list[Effect]:
    """Return what the statement does; nothing for one that touches no rows."""
    try:
        return _effects(_Statement(text, database))
    except IndexError:
        return [Effect(Doing.UNKNOWN)]


def _effects(statement: _Statement) -> list[Effect]:
    verb = statement.next()
    if verb in _HARMLESS:
        return []
    if verb == "XA":
        return [] if statement.peek() in ("START", "BEGIN", "END", "ROLLBACK", "PREPARE") else [Effect(Doing.XA_ENDED)]
    if verb == "TRUNCATE":
        statement.take("TABLE")
        return [Effect(Doing.EMPTIED, statement.table())]
    if verb == "RENAME":
        return _renamed(statement)
    if verb == "DROP":
        return _dropped(statement)
    if verb == "CREATE":
        return _created(statement)
    if verb == "ALTER":
        return _altered(statement)
    return [Effect(Doing.UNKNOWN)]


def _renamed(statement: _Statement) -> list[Effect]:
    if not statement.take("TABLE", "TABLES"):
        return [] if statement.peek() == "USER" else [Effect(Doing.UNKNOWN)]
    statement.take_exists()
    found: list[Effect] = []
    while True:
        old = statement.table()
        while not statement.take("TO"):
            if statement.ended:
                raise IndexError
            statement.next()  # MariaDB: WAIT n
        found += [Effect(Doing.REPLACED, old), Effect(Doing.REPLACED, statement.table())]
        if not statement.take(","):
            return found


def _dropped(statement: _Statement) -> list[Effect]:
    temporary = statement.take("TEMPORARY")
    if statement.take("TABLE", "TABLES"):
        statement.take_exists()
        return [] if temporary else [Effect(Doing.REPLACED, table) for table in statement.tables()]
    if statement.take("DATABASE", "SCHEMA"):
        statement.take_exists()
        return [Effect(Doing.REPLACED, TableId(statement.name(), "*"))]
    return [] if statement.peek() in _NOT_TABLES or statement.peek() == "PREPARE" else [Effect(Doing.UNKNOWN)]


def _created(statement: _Statement) -> list[Effect]:
    if statement.take("OR"):
        statement.take("REPLACE")
    if statement.take("TEMPORARY") or statement.peek() in _NOT_TABLES:
        return []
    if not statement.take("TABLE"):
        return [Effect(Doing.UNKNOWN)]
    statement.take_exists()
    return [Effect(Doing.REPLACED, statement.table())]


def _altered(statement: _Statement) -> list[Effect]:
    statement.take("ONLINE")
    drops_rows = statement.take("IGNORE")  # those that a unique index has twice
    if not statement.take("TABLE"):
        return [] if statement.peek() in _NOT_TABLES else [Effect(Doing.UNKNOWN)]
    statement.take_exists()
    table = statement.table()
    parts = statement.parts()
    left = [part for part in parts if not _is_light(_words(part))]
    if not left and not drops_rows:
        return []
    replaced = [Effect(Doing.REPLACED, table)]
    if drops_rows:
        return replaced
    for part in left:
        words = _words(part)
        if words[0] == "EXCHANGE" or (words[0] == "RENAME" and words[1:2] != ["COLUMN"]):
            other = _other_table(part, table.schema)
            return [Effect(Doing.UNKNOWN)] if other is None else [*replaced, Effect(Doing.REPLACED, other)]
    if statement.is_conditional:
        return replaced
    try:
        return [Effect(Doing.ALTERED, table, tuple(column_change(part) for part in left))]
    except NotUnderstood:
        return replaced


def _words(part: list[Token]) -> list[str]:
    return [value.upper() if kind in ("word", "mark") else "" for kind, value in part]


def _is_light(part: list[str]) -> bool:
    if part in (["ENGINE", "INNODB"], ["ENGINE", "=", "INNODB"], ["FORCE"]):
        return True
    if part[0] in _LIGHT:
        return "ENGINE" not in part
    if part[0] == "ALTER":  # of a column: what later rows get
        return part[1:2] != [] and (part[1] in _INDEXES or part[-2:] == ["DROP", "DEFAULT"] or "SET" in part[2:4])
    return part[0] in ("ADD", "DROP", "RENAME") and part[1:2] != [] and part[1] in _INDEXES


def _other_table(part: list[Token], database: str) -> TableId | None:
    """Return the table that a part names: RENAME [TO] t, EXCHANGE PARTITION p WITH TABLE t."""
    words = _words(part)
    at = words.index("TABLE") + 1 if "TABLE" in words else 2 if words[1:2] in (["TO"], ["AS"], ["="]) else 1
    names = [value for kind, value in part[at : at + 3] if kind in ("name", "word", "quoted")]
    if words[at + 1 : at + 2] == ["."]:
        return TableId(names[0], names[1]) if len(names) == 2 else None
    return TableId(database, names[0]) if names else None

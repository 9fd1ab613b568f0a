"""What the parts of an ALTER TABLE do to columns, for those that leave the values of all rows as they are.

Types are not read here: the catalogue and the next TABLE_MAP have them, and who follows the statement compares them.
A part of which the effect on existing rows is not certain, such as a DEFAULT other than NULL in a new column, is not
understood: its table is copied again.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.column_change import ColumnChange

Token = tuple[str, str]  # kind and text, as statements.py cuts them
Words = list[Token]

_NAMES = frozenset({"name", "word", "quoted"})
_TEXTS = frozenset({"text", "quoted"})
# Behind ADD or DROP these begin something else than a column, unless they are quoted.
_NO_COLUMN = frozenset({"PRIMARY", "PARTITION", "SYSTEM", "PERIOD"})
_OF_ANY_COLUMN = frozenset(
    ["UNSIGNED", "SIGNED", "ZEROFILL", "NULL", "PRECISION", "VARYING", "BINARY", "ASCII", "UNICODE", "COMPRESSED"]
)
_TIMES = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})


class NotUnderstood(Exception):
    """What a part does to rows that are there is not certain."""


def column_change(part: Sequence[Token]) -> ColumnChange:
    """Return what one part does to a column. NotUnderstood when that is not certain."""
    return _Part(list(part)).read()


class _Part:
    def __init__(self, tokens: Words) -> None:
        self._left = tokens

    def read(self) -> ColumnChange:
        verb = self._word()
        self._left = self._left[1:]
        if verb == "ADD":
            return self._added()
        if verb == "DROP":
            return self._dropped()
        if verb == "RENAME":
            return self._renamed()
        if verb in ("CHANGE", "MODIFY"):
            return self._altered(renames=verb == "CHANGE")
        raise NotUnderstood

    def _added(self) -> ColumnChange:
        optional = self._column_word()
        name = self._name()
        return ColumnChange("", name, self._definition(new=True), optional)

    def _dropped(self) -> ColumnChange:
        optional = self._column_word()
        name = self._name()
        self._take("RESTRICT", "CASCADE")
        self._require_end()
        return ColumnChange(name, "", None, optional)

    def _renamed(self) -> ColumnChange:
        if not self._take("COLUMN"):
            raise NotUnderstood
        optional = self._exists()
        before = self._name()
        if not self._take("TO"):
            raise NotUnderstood
        after = self._name()
        self._require_end()
        return ColumnChange(before, after, None, optional)

    def _altered(self, *, renames: bool) -> ColumnChange:
        optional = self._column_word()
        before = self._name()
        after = self._name() if renames else before
        return ColumnChange(before, after, self._definition(new=False), optional)

    def _column_word(self) -> bool:
        """Pass COLUMN and IF EXISTS; return whether the latter was there."""
        if not self._take("COLUMN") and self._word() in _NO_COLUMN:
            raise NotUnderstood
        return self._exists()

    def _exists(self) -> bool:
        if not self._take("IF"):
            return False
        self._take("NOT")
        if not self._take("EXISTS"):
            raise NotUnderstood
        return True

    def _definition(self, *, new: bool) -> str | None:
        """Pass type and attributes; return where the column comes to stand."""
        if not self._word().isalpha():
            raise NotUnderstood
        self._left = self._left[1:]
        self._parenthesised()
        while self._left:
            if self._take(*_OF_ANY_COLUMN):
                continue
            if self._take("FIRST"):
                self._require_end()
                return ""
            if self._take("AFTER"):
                place = self._name()
                self._require_end()
                return place
            self._attribute(new=new)
        return None

    def _attribute(self, *, new: bool) -> None:
        if self._take("CHARACTER"):
            if not self._take("SET"):
                raise NotUnderstood
            self._any(_NAMES | _TEXTS)
        elif self._take("CHARSET", "COLLATE"):
            self._any(_NAMES | _TEXTS)
        elif self._take("COMMENT"):
            self._any(_TEXTS)
        elif self._take("DEFAULT"):
            if not self._take("NULL"):
                self._default(new=new)
        elif not new and self._take("ON"):
            if not (self._take("UPDATE") and self._take(*_TIMES)):
                raise NotUnderstood
            self._parenthesised()
        elif not (not new and self._take("NOT") and self._take("NULL")):
            raise NotUnderstood

    def _default(self, *, new: bool) -> None:
        """Pass a default of later rows."""
        if new:
            raise NotUnderstood
        self._take_mark("-", "+")
        self._any(_TEXTS | {"word"})
        if self._take_mark("."):
            self._any({"word"})
        self._parenthesised()

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _word(self) -> str:
        kind, value = self._left[0] if self._left else ("", "")
        return value.upper() if kind == "word" else ""

    def _take(self, *words: str) -> bool:
        found = self._word() in words
        self._left = self._left[found:]
        return found

    def _take_mark(self, *marks: str) -> bool:
        found = bool(self._left) and self._left[0][0] == "mark" and self._left[0][1] in marks
        self._left = self._left[found:]
        return found

    def _name(self) -> str:
        return self._any(_NAMES)

    def _any(self, kinds: frozenset[str] | set[str]) -> str:
        if not self._left or self._left[0][0] not in kinds:
            raise NotUnderstood
        value = self._left[0][1]
        self._left = self._left[1:]
        return value

    def _parenthesised(self) -> None:
        """Pass what stands in parentheses, if they come next."""
        if not self._take_mark("("):
            return
        while not self._take_mark(")"):
            if not self._left or self._take_mark("("):
                raise NotUnderstood
            self._left = self._left[1:]

    def _require_end(self) -> None:
        if self._left:
            raise NotUnderstood

"""What `penstock check` found, as an operator reads it, as a program reads it, and as statements for psql."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from penstock.source.finding import Finding, Level

LEVELS: tuple[Level, ...] = ("error", "warning", "note")
_LOOK = {
    "error": ("ERROR  ", "bold red", "fix: "),
    "warning": ("WARNING", "yellow", "fix: "),
    "note": ("note   ", "dim", "by:  "),
}
_STATEMENT = re.compile(r"(ALTER|CREATE|GRANT|COMMENT ON) |SELECT pg_reload_conf\(\)$")
_PROSE = re.compile(r"…|, or | with the ")
_PIECES = re.compile(r"""((?:"(?:[^"]|"")*"|'(?:[^']|'')*'|(?!;\s).)+)(?:;\s+|$)""", re.DOTALL)


@dataclass(frozen=True)
class Found:
    """One finding, and what it is about: a source's name where the file has several, or "" otherwise."""

    where: str
    finding: Finding


@dataclass(frozen=True)
class SourceSeen:
    name: str
    endpoint: str
    version: str
    tables: int


def by_level(found: Iterable[Found]) -> list[Found]:
    """Errors first, then warnings, then notes; otherwise in the order in which they were found."""
    return sorted(found, key=lambda one: LEVELS.index(one.finding.level))


def counts(found: Iterable[Found]) -> Counter[Level]:
    return Counter(one.finding.level for one in found)


def as_lines(found: Sequence[Found]) -> Iterator[Text]:
    """Readable without colours too."""
    for one in by_level(found):
        finding, (word, style, label) = one.finding, _LOOK[one.finding.level]
        where = f"{one.where}: " if one.where else ""
        yield Text.assemble("  ", (word, style), f"  {where}{finding.what}")
        if finding.fix:
            yield Text.assemble("           ", (label, "bold"), finding.fix)


def verdict(found: Sequence[Found]) -> str:
    """Return the last line: `ready to run, with 1 warning and 2 notes`."""
    number = counts(found)
    rest = " and ".join(count_text(number[level], level) for level in LEVELS[1:] if number[level])
    if number["error"]:
        return f"{count_text(number['error'], 'thing')} must be fixed" + (f"; {rest}" if rest else "")
    return "ready to run" + (f", with {rest}" if rest else "")


def as_json(file: str, pipeline: str, sources: Sequence[SourceSeen], found: Sequence[Found]) -> dict[str, Any]:
    number = counts(found)
    return {
        "pipeline": pipeline,
        "file": file,
        "ready": not number["error"],
        **{f"{level}s": number[level] for level in LEVELS},
        "sources": [
            {"name": one.name, "endpoint": one.endpoint, "version": one.version, "tables": one.tables}
            for one in sources
        ],
        "findings": [
            {
                "level": one.finding.level,
                "source": one.where or None,
                "table": None if one.finding.table is None else str(one.finding.table),
                "what": one.finding.what,
                "fix": one.finding.fix or None,
            }
            for one in by_level(found)
        ],
    }


def as_sql(found: Sequence[Found]) -> Iterator[str]:
    """Return the statements of the errors, ready for psql; what is optional, or no statement, as comments."""
    seen: set[str] = set()
    for one in by_level(found):
        finding = one.finding
        pieces = [piece for piece in _PIECES.findall(finding.fix) if piece]
        if not any(map(is_statement, pieces)):
            continue
        yield _comment(f"{finding.level}: {one.where + ': ' if one.where else ''}{finding.what}")
        for piece in pieces:
            if not is_statement(piece):
                yield _comment(piece)
            elif piece not in seen:
                seen.add(piece)
                yield f"{piece};" if finding.level == "error" else _comment(f"{piece};")


def is_statement(piece: str) -> bool:
    """Whether it can be given to psql as it is. Statements that remove something are left to the operator."""
    return bool(_STATEMENT.match(piece)) and not _PROSE.search(piece)


def _comment(text: str) -> str:
    return f"-- {' '.join(text.split())}"


def count_text(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"

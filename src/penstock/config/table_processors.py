"""Which processors may act where: on tables of a destination (`processors/rows.py`), and on streams with types."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.config.any_destination import AnyDestination
from penstock.config.destinations import StreamSection
from penstock.config.processors import JavascriptProcessor, ProcessorSection, PythonProcessor
from penstock.config.rules import TableRule
from penstock.config.section import misplaced
from penstock.model.feed import Mode
from penstock.processors.rows import OF_TABLES, not_for_rows
from penstock.processors.writes import selects, writes_anything

_WITH_A_KEY = {Mode.CLONE, Mode.HISTORY}


def require_fitting(
    processors: Sequence[ProcessorSection], rules: Sequence[TableRule], destinations: Sequence[AnyDestination]
) -> None:
    """Raise where processors would act on tables and cannot be exact there.

    Also where they act on columns in a format that takes its own from the source's schema.
    """
    for number, destination in enumerate(destinations):
        ruled = [(at, one) for at, rule in enumerate(rules) if (one := rule.at(destination.name)) is not None]
        if isinstance(destination, StreamSection):
            found = [*processors, *(one for _, rule in ruled for one in rule.processors), *destination.processors]
            if destination.has_typed_columns and writes_anything([one.spec("") for one in found]):
                problem = "is one whose columns have the types of the source; processors there may keep, leave out or"
                raise misplaced(("destinations", number, "envelope"), f"{problem} route events, and write no columns")
            continue
        for at, rule in ruled:
            _require(("processors",), processors, rule.modes)
            _require(("tables", at, "processors"), rule.processors, rule.modes)
            _require(("destinations", number, "processors"), destination.processors, rule.modes)


def _require(key: tuple[str | int, ...], processors: Sequence[ProcessorSection], modes: Collection[Mode]) -> None:
    problem = next(filter(None, (unfit_for_tables(one, modes) for one in processors)), None)
    if problem is not None:
        raise misplaced(key, problem)


def unfit_for_tables(processor: ProcessorSection, modes: Collection[Mode]) -> str | None:
    """Say why a processor cannot act on tables in these modes."""
    spec = processor.spec("")
    if spec.type not in OF_TABLES:
        return f"has one of type {spec.type}, which is for streams; tables take {', '.join(OF_TABLES)}"
    if selects(spec):
        return "has a `select`, which is for streams; choose columns with `columns` of the rule"
    if isinstance(processor, PythonProcessor | JavascriptProcessor) and processor.adds:
        return "has `adds`, which is for streams: a table has the columns of its source"
    if processor.changes_key and not _WITH_A_KEY.isdisjoint(modes):
        return "has `changes_key`, and a table in mode clone or history finds its rows by the source's key"
    found = None if set(modes) <= {Mode.EVENTS} else not_for_rows(spec)
    return None if found is None else f"looks at {found}, which a row of a table does not have; only mode events does"

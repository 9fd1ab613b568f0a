"""Say of processors, without running them, which columns they may write, and whether they change the structure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.model.processor import ProcessorSpec
from penstock.processors.cel import CelStep
from penstock.processors.expression import Name, Selected
from penstock.processors.factory import step_of
from penstock.processors.flatten import FlattenStep
from penstock.processors.javascript import JavascriptStep
from penstock.processors.python import PythonStep
from penstock.processors.sql import SqlStep


class _Everything(frozenset[str]):
    """Contains every name: fields of a composite type become columns that are not known before there is a row."""

    def __contains__(self, name: object) -> bool:
        return True


def written_columns(specs: Sequence[ProcessorSpec]) -> frozenset[str]:
    """Return the columns that processors may write. Ask whether a name is among them: not all can be listed."""
    written: set[str] = set()
    for spec in specs:
        step = step_of(spec)
        match step:
            case PythonStep() | JavascriptStep() | FlattenStep():
                return _Everything()
            case SqlStep():
                written |= {item.name for item in step.select if not _is_plain(item)}
                written |= {name for name, _ in step.assigned}
            case CelStep():
                written |= {name for name, _ in step.assigned}
            case _:
                pass
    return frozenset(written)


def writes_anything(specs: Sequence[ProcessorSpec]) -> bool:
    """Return whether processors may write a column at all, rather than only keep, leave out or route events."""
    found: Collection[str] = written_columns(specs)
    return isinstance(found, _Everything) or bool(found) or any(selects(spec) for spec in specs)


def selects(spec: ProcessorSpec) -> bool:
    """Return whether a processor chooses columns."""
    step = step_of(spec)
    return isinstance(step, SqlStep) and bool(step.select)


def _is_plain(item: Selected) -> bool:
    """Whether a select list names a column that stays as it is."""
    return item.expression is None or item.expression.root == Name("", item.name)

"""Evaluate expressions (`expression.py`) on columns of events with Arrow's kernels.

What cannot be computed for a row (a cast, a division by zero, an overflow) raises EvaluationError for the whole batch:
whoever calls finds the row by halving (`chain.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.processors.expression import Expression, Literal, Name, Node

_TYPES = {
    "text": pa.string(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_COMPARISONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ARITHMETIC = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked, "/": pc.divide_checked}
NUMERIC_SCALE = 18  # of a cast to numeric, and of a quotient of decimals


class EvaluationError(Exception):
    """The expression has no value for some row, or none for columns of these types."""


class Row:
    """What names stand for: columns of the row at hand, of both images, and facts. All of `length`."""

    def __init__(
        self,
        row: Mapping[str, pa.Array],
        length: int,
        *,
        before: Mapping[str, pa.Array] | None = None,
        after: Mapping[str, pa.Array] | None = None,
        facts: Mapping[str, pa.Array] | None = None,
    ) -> None:
        self._sides = {"": row, "before": before or {}, "after": after or {}, "fact": facts or {}}
        self.length = length

    def column(self, name: Name) -> pa.Array:
        found = self._sides[name.side].get(name.column)
        if found is None:
            raise EvaluationError(f"there is no column {name.column}")
        return found


def evaluate(expression: Expression, row: Row) -> pa.Array:
    """Return the expression's value for every row."""
    try:
        value = _value(expression.root, row)
    except (pa.ArrowException, TypeError, ValueError, KeyError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EvaluationError(f"`{expression.text}`: {reason}") from error
    return _array(value, row.length)


def holds(expression: Expression, row: Row) -> pa.Array:
    """Return for every row whether the expression is true; NULL is not."""
    value = evaluate(expression, row)
    if pa.types.is_null(value.type):
        return pa.repeat(False, row.length)
    if not pa.types.is_boolean(value.type):
        raise EvaluationError(f"`{expression.text}` is {value.type}, neither true nor false")
    return pc.fill_null(value, False)


def _array(value: Any, length: int) -> pa.Array:
    if isinstance(value, pa.ChunkedArray):
        return value.combine_chunks()
    if isinstance(value, pa.Scalar):
        return pa.nulls(length, value.type) if not value.is_valid else pa.repeat(value, length)
    return value


def _value(node: Node, row: Row) -> Any:
    if isinstance(node, Literal):
        return pa.scalar(node.value)
    if isinstance(node, Name):
        return row.column(node)
    if node.function == "changed":
        (column,) = node.arguments
        assert isinstance(column, Name)
        return _distinct(row.column(Name("before", column.column)), row.column(Name("after", column.column)))
    if node.function == "cast":
        value, type = node.arguments
        assert isinstance(type, Literal)
        return _cast(_value(value, row), str(type.value))
    return _KERNELS[node.function](*(_value(argument, row) for argument in node.arguments))


def _cast(value: Any, name: str) -> Any:
    if pa.types.is_null(value.type):
        return value.cast(_TYPES.get(name, pa.decimal128(38, NUMERIC_SCALE)))
    if name == "numeric":
        return value if pa.types.is_decimal(value.type) else pc.cast(value, pa.decimal128(38, NUMERIC_SCALE))
    if name == "text" and pa.types.is_binary(value.type):
        return pc.cast(value, pa.string())
    return pc.cast(value, _TYPES[name])


def _aligned(left: Any, right: Any) -> tuple[Any, Any]:
    """Make a constant the type of the other side: '2026-01-01' beside a date is a date."""
    if left.type == right.type:
        return left, right
    for one, other, swap in ((left, right, False), (right, left, True)):
        if pa.types.is_null(one.type):
            one = one.cast(other.type)
        elif isinstance(one, pa.Scalar) and not pa.types.is_string(other.type):
            one = _constant(one, other.type)
        else:
            continue
        return (other, one) if swap else (one, other)
    if pa.types.is_string(left.type) != pa.types.is_string(right.type):
        raise TypeError(f"{left.type} and {right.type} cannot be compared; cast one of them")
    return left, right


def _constant(value: pa.Scalar, type: pa.DataType) -> pa.Scalar:
    number = value.as_py()
    if isinstance(number, Decimal | int) and not isinstance(number, bool) and pa.types.is_decimal(type):
        return pa.scalar(Decimal(number))
    if pa.types.is_string(value.type) or (isinstance(number, int) and not pa.types.is_boolean(type)):
        try:
            return value.cast(type)
        except pa.ArrowInvalid:
            if pa.types.is_string(value.type):
                raise
    return value


def _compared(name: str) -> Callable[[Any, Any], Any]:
    return lambda left, right: _COMPARISONS[name](*_aligned(left, right))


def _calculated(name: str) -> Callable[[Any, Any], Any]:
    def calculate(left: Any, right: Any) -> Any:
        left, right = _aligned(left, right)
        if not (pa.types.is_decimal(left.type) and pa.types.is_decimal(right.type)):
            return _ARITHMETIC[name](left, right)
        if name == "/":
            wide = pa.decimal256(70, NUMERIC_SCALE)
            return pc.cast(pc.divide_checked(pc.cast(left, wide), right), pa.decimal128(38, NUMERIC_SCALE), safe=False)
        left, right = (pc.cast(one, pa.decimal256(one.type.precision, one.type.scale)) for one in (left, right))
        found = _ARITHMETIC[name](left, right)
        return pc.cast(found, pa.decimal128(38, min(found.type.scale, NUMERIC_SCALE)))  # exactly, or an error

    return calculate


def _remainder(left: Any, right: Any) -> Any:
    """As in SQL, the sign is that of the dividend."""
    left, right = _aligned(left, right)
    return pc.subtract_checked(left, pc.multiply_checked(pc.divide_checked(left, right), right))


def _distinct(left: Any, right: Any) -> Any:
    """IS DISTINCT FROM: never NULL."""
    differ = pc.fill_null(pc.not_equal(left, right), False)
    return pc.or_(differ, pc.not_equal(pc.is_null(left), pc.is_null(right)))


def _in(value: Any, *wanted: Any) -> Any:
    found = pa.scalar(False)
    for one in wanted:
        found = pc.or_kleene(found, _compared("=")(value, one))
    return found


def _like(value: Any, pattern: Any) -> Any:
    if not isinstance(pattern, pa.Scalar):
        raise TypeError("LIKE takes a constant pattern")
    return pc.match_like(value, pattern.as_py())


def _case(*branches: Any) -> Any:
    *pairs, otherwise = branches
    values = [*pairs[1::2], otherwise]
    type = next((one.type for one in values if not pa.types.is_null(one.type)), pa.null())
    result = _to(otherwise, type)
    for condition, value in reversed(list(zip(pairs[::2], pairs[1::2], strict=True))):
        result = pc.if_else(pc.fill_null(condition, False), _to(value, type), result)
    return result


def _to(value: Any, type: pa.DataType) -> Any:
    return value if value.type == type else pc.cast(value, type)


def _coalesce(*values: Any) -> Any:
    type = next((one.type for one in values if not pa.types.is_null(one.type)), pa.null())
    return pc.coalesce(*(_to(one, type) for one in values))


def _nullif(value: Any, other: Any) -> Any:
    same = pc.fill_null(_compared("=")(value, other), False)
    return pc.if_else(same, pa.scalar(None, value.type), value)


def _text(value: Any) -> Any:
    return value if pa.types.is_string(value.type) else pc.cast(value, pa.string())


def _joined(*values: Any) -> Any:
    """`||`: NULL makes the whole NULL."""
    return pc.binary_join_element_wise(*map(_text, values), "")


def _concat(*values: Any) -> Any:
    """concat leaves NULL out."""
    return pc.binary_join_element_wise(*map(_text, values), "", null_handling="skip")


def _substring(value: Any, first: Any, count: Any = None) -> Any:
    start = max(first.as_py() - 1, 0)
    stop = None if count is None else max(first.as_py() - 1 + count.as_py(), start)
    return pc.utf8_slice_codeunits(value, start, stop)


def _round(value: Any, digits: Any = None) -> Any:
    return pc.round(value, 0 if digits is None else digits.as_py(), round_mode="half_towards_infinity")


def _each(function: Callable[[Any], Any], type: pa.DataType) -> Callable[[Any], Any]:
    """Apply a function to each value that is not null."""

    def apply(value: Any) -> Any:
        if isinstance(value, pa.Scalar):
            return pa.scalar(function(value.as_py()) if value.is_valid else None, type)
        return pa.array([None if one is None else function(one) for one in _array(value, 0).to_pylist()], type)

    return apply


def _sha256(value: Any) -> Any:
    texts = value if pa.types.is_binary(value.type) else _text(value)
    return _each(lambda one: hashlib.sha256(one if isinstance(one, bytes) else one.encode()).hexdigest(), pa.string())(
        texts
    )


def _json_text(value: Any, path: Any) -> Any:
    """Return the text of a value inside of JSON, by a path like `a.b.0`; null where there is none."""
    steps = path.as_py().split(".")

    def at(text: str) -> str | None:
        found = json.loads(text, parse_float=Decimal)
        for step in steps:
            if isinstance(found, dict):
                found = found.get(step)
            elif isinstance(found, list) and step.isdigit() and int(step) < len(found):
                found = found[int(step)]
            else:
                return None
        if found is None or isinstance(found, str):
            return found
        return str(found) if isinstance(found, Decimal) else json.dumps(found, ensure_ascii=False, default=str)

    return _each(at, pa.string())(value)


_KERNELS: dict[str, Callable[..., Any]] = {
    **{name: _compared(name) for name in _COMPARISONS},
    **{name: _calculated(name) for name in _ARITHMETIC},
    "%": _remainder,
    "||": _joined,
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "negate": pc.negate_checked,
    "is null": pc.is_null,
    "in": _in,
    "like": _like,
    "case": _case,
    "abs": pc.abs_checked,
    "ceil": pc.ceil,
    "coalesce": _coalesce,
    "concat": _concat,
    "floor": pc.floor,
    "json_text": _json_text,
    "length": pc.utf8_length,
    "lower": pc.utf8_lower,
    "nullif": _nullif,
    "regexp_like": lambda value, pattern: pc.match_substring_regex(value, pattern.as_py()),
    "replace": lambda value, old, new: pc.replace_substring(value, old.as_py(), new.as_py()),
    "round": _round,
    "sha256": _sha256,
    "starts_with": lambda value, start: pc.starts_with(value, start.as_py()),
    "substring": _substring,
    "trim": pc.utf8_trim_whitespace,
    "upper": pc.utf8_upper,
}

"""Sizes (`16MiB`) and durations (`200ms`) as the pipeline file writes them; plain numbers are bytes and seconds."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator

SIZE_ALLOWED = "a whole number of bytes, or a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, like 16MiB"
DURATION_ALLOWED = "a number of seconds, or a number with ms, s, m, h or d, like 200ms"

_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_size(value: object) -> int:
    """Bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    number, unit = _quantity(value, SIZE_ALLOWED)
    size = number * _BYTES.get(unit or "B", 0)
    if (unit and unit not in _BYTES) or size != size.to_integral_value():
        raise ValueError(f"must be {SIZE_ALLOWED}")
    return int(size)


def parse_duration(value: object) -> float:
    """Return seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    number, unit = _quantity(value, DURATION_ALLOWED)
    if unit and unit not in _SECONDS:
        raise ValueError(f"must be {DURATION_ALLOWED}")
    return float(number * _SECONDS[unit or "s"])


def _quantity(value: object, allowed: str) -> tuple[Decimal, str]:
    parts = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if parts is None:
        raise ValueError(f"must be {allowed}")
    return Decimal(parts[1]), parts[2]


Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]

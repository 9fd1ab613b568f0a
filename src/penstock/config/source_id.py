"""The `sid` of a source: what its rows carry in a table that several sources share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator


def _sid(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if value is not None and not whole and not (isinstance(value, str) and value):
        raise ValueError("must be text or a whole number")
    return value


SourceId = Annotated[str | int | None, BeforeValidator(_sid)]

"""What every mapping of the pipeline file is: frozen, and strict about its keys. `model` and `rules` build on it."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Identifier = Annotated[str, Field(min_length=1, max_length=63)]


class Section(BaseModel):
    """A mapping of the file. A key it does not know is refused, with the nearest that it does."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in _keys(cls):
                    raise PydanticCustomError("unknown_key", "{problem}", {"key": key, "problem": _unknown(cls, key)})
        return data


def _keys(section: type[Section]) -> list[str]:
    """Return the keys as the file spells them."""
    return [field.alias or name for name, field in section.model_fields.items()]


def _unknown(section: type[Section], key: object) -> str:
    allowed = ", ".join(_keys(section))
    near = difflib.get_close_matches(str(key), _keys(section), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {hint}Allowed here: {allowed}"


def misplaced(at: str | tuple[str | int, ...], problem: str) -> PydanticCustomError:
    """Report a mistake that shows only in several keys together, at one of them."""
    place = at if isinstance(at, tuple) else (at,)
    return PydanticCustomError("misplaced", "{problem}", {"at": place, "problem": problem})

"""Values that several sections of the pipeline file share: names, places in a file system or store, properties."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

LONGEST_NAME = 54  # with `penstock_` before it, Postgres' 63


def _property(value: object) -> object:
    """Spark properties are text, whatever YAML makes of `true` or `4`."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _located(text: str, info: ValidationInfo) -> str:
    """Return a URI as it is; a path made absolute, from the folder of the pipeline file."""
    if "://" in text:
        return text
    if text.startswith("file:/"):
        return f"file://{text.removeprefix('file:')}"
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return str((folder / Path(text).expanduser()).resolve())


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=LONGEST_NAME)]
Located = Annotated[str, Field(min_length=1), AfterValidator(_located)]
Properties = Annotated[dict[str, Annotated[str, BeforeValidator(_property)]], Field(repr=False)]

"""Pipeline files as clients send them, and their errors as clients read them.

A document that comes by HTTP is an object of JSON. To be read and checked it is written to a file for a moment; what is
said of it names no such file.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import yaml
from fastapi import Body, Depends

from penstock.errors import ConfigError
from penstock.server.problems import Refused

MOST_DEPTH = 50  # of objects and lists in each other; a pipeline file has about ten


def _document(
    document: Annotated[dict[str, Any], Body(description="A pipeline file as an object, with the keys of the YAML.")],
) -> dict[str, Any]:
    if _is_deeper(document, MOST_DEPTH):
        raise Refused(422, "INVALID_REQUEST", f"the document has more than {MOST_DEPTH} levels", "It is no pipeline")
    return document


Document = Annotated[dict[str, Any], Depends(_document)]


def yaml_of(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)


@contextmanager
def as_file(text: str, folder: Path) -> Iterator[Path]:
    """Give the text as a file in a folder, readable by nobody else, until the block ends. Errors do not name it."""
    descriptor, made = tempfile.mkstemp(prefix=".", suffix=".check", dir=folder)
    trial = Path(made)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        yield trial
    except ConfigError as error:
        what = re.sub(rf"{re.escape(made)}(:\d+)?:? ?", "", error.what)
        raise ConfigError(
            what, "Correct it, and send it again" if made in error.solution else error.solution
        ) from error
    finally:
        trial.unlink(missing_ok=True)


def _is_deeper(document: Any, most: int) -> bool:
    """Whether there are more levels than that, without a level of the stack for each."""
    level: list[Any] = [document]
    for _ in range(most):
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return False
    return True


def _inner(value: Any) -> list[Any]:
    found = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [one for one in found if isinstance(one, dict | list)]

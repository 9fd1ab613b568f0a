"""Make a processor from what the pipeline file says of it. `config/processors.py` writes the settings."""

from __future__ import annotations

import json
from typing import Any

from penstock.model.processor import ProcessorSpec
from penstock.processors.cel import CelStep
from penstock.processors.expression import Expression, parse, parse_select
from penstock.processors.filter import FilterStep
from penstock.processors.flatten import FlattenStep
from penstock.processors.javascript import JavascriptStep
from penstock.processors.outbox import OutboxStep
from penstock.processors.python import PythonStep
from penstock.processors.sql import SqlStep

AnyStep = CelStep | FilterStep | FlattenStep | JavascriptStep | OutboxStep | PythonStep | SqlStep


def step_of(spec: ProcessorSpec) -> AnyStep:
    """Return the processor, ready to run."""
    given: dict[str, Any] = json.loads(spec.settings)
    match spec.type:
        case "filter":
            return FilterStep(_parsed(given["where"]), tuple(given["ops"]))
        case "sql":
            select = parse_select(given["select"]) if given["select"] else ()
            assigned = tuple((name, parse(text)) for name, text in given["set"].items())
            return SqlStep(select, assigned, _parsed(given["where"]))
        case "python":
            return PythonStep(**{**given, "adds": tuple(given["adds"])})
        case "flatten":
            return FlattenStep(**{**given, "json": tuple(given["json"])})
        case "outbox":
            pairs = {name: tuple(given[name].items()) for name in ("columns", "headers")}
            return OutboxStep(**{**given, **pairs})
        case "javascript":
            return JavascriptStep(**{**given, "adds": tuple(given["adds"])})
        case "cel":
            return CelStep(given["where"], tuple(given["set"].items()))
    raise ValueError(f"there is no processor of type {spec.type}")


def _parsed(text: str) -> Expression | None:
    return parse(text) if text else None

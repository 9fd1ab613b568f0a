"""Prometheus' text format: families of samples, written with their help and type, labels escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass
class Family:
    """One metric with all of its samples. A histogram's samples carry their suffix (`_bucket`, `_sum`, `_count`)."""

    name: str
    kind: Kind
    help: str
    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float | None, suffix: str = "", /, **labels: str | None) -> None:
        """Add a sample, unless its value is unknown. Labels that are None are left out."""
        if value is not None:
            kept = {name: text for name, text in labels.items() if text is not None}
            self.samples.append((suffix, kept, float(value)))


def written(families: Iterable[Family]) -> str:
    """Write families; those without a sample are left out."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        lines.append(f"# HELP {family.name} {_escaped(family.help, quotes=False)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.samples:
            lines.append(f"{family.name}{suffix}{_labels(labels)} {_number(value)}")
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str, quotes: bool = True) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)

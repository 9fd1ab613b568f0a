"""Line plots as SVG, for docs/benchmarks.md: a few lines a panel, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 34, 44
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
TICKS = 5
POINTS = 400  # of a line: more would not be seen

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Its y axis begins at zero, and so does its x axis unless `log_x`: then it is logarithmic, for sizes."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Line]
    log_x: bool = False


def draw(file: Path, *panels: Panel) -> Path:
    """Writes the panels, one below the other. Gives the file."""
    height = HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate(0 {HEIGHT * number})">', *_panel(panel), "</g>"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*parts, "</svg>"]) + "\n")
    return file


def _panel(panel: Panel) -> list[str]:
    xs = sorted({x for line in panel.lines.values() for x, _ in line}) or [1.0]
    y_ticks = _ticks(max((y for line in panel.lines.values() for _, y in line), default=1.0))
    log = panel.log_x and xs[0] > 0 and xs[-1] > xs[0]
    x_ticks = xs if log else _ticks(xs[-1])
    top, right = y_ticks[-1], x_ticks[-1]
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(x: float) -> float:
        share = math.log(x / xs[0]) / math.log(right / xs[0]) if log else x / right
        return LEFT + inner_width * share

    def down(y: float) -> float:
        return TOP + inner_height * (1 - y / top)

    parts = [
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(panel.title)}</text>',
        f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.x_label)}</text>',
        f'<text x="14" y="{TOP + inner_height / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {TOP + inner_height / 2})">{escape(panel.y_label)}</text>',
    ]
    for y in y_ticks:
        parts += [
            f'<line x1="{LEFT}" y1="{down(y):.1f}" x2="{WIDTH - RIGHT}" y2="{down(y):.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{_figure(y)}</text>',
        ]
    for x in x_ticks:
        below = f'x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 16}"'
        parts.append(f'<text {below} text-anchor="middle">{_figure(x)}</text>')
    for number, (name, line) in enumerate(panel.lines.items()):
        colour, every = COLOURS[number % len(COLOURS)], max(1, len(line) // POINTS)
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line[::every])
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 14 + 18 * number}" fill="{colour}">{escape(name)}</text>',
        ]
        if log:
            parts += [f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
    return parts


def _ticks(highest: float) -> list[float]:
    """From zero to at least the highest, in round steps."""
    rough = max(highest, 1e-9) / TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = magnitude * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999)
    return [step * number for number in range(math.ceil(highest / step * 0.999) + 1)] if highest > 0 else [0.0, 1.0]


def _figure(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g}M"
    if value >= 10_000:
        return f"{value / 1_000:.3g}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

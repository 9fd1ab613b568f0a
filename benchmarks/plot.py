"""Line plots as SVG, for docs/benchmarks.md: a few lines over one axis, readable in light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 34, 44
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
TICKS = 5

Line = Sequence[tuple[float, float]]


def line_plot(file: Path, title: str, x_label: str, y_label: str, lines: Mapping[str, Line]) -> None:
    """Writes the plot; both axes begin at zero."""
    right = max((x for line in lines.values() for x, _ in line), default=1.0) or 1.0
    top = max((y for line in lines.values() for _, y in line), default=1.0) or 1.0
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> str:
        return f"{LEFT + inner_width * x / right:.1f},{TOP + inner_height * (1 - y / top):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="14" y="{TOP + inner_height / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {TOP + inner_height / 2})">{escape(y_label)}</text>',
    ]
    for tick in range(TICKS + 1):
        x, y = right * tick / TICKS, top * tick / TICKS
        left_end, right_end, below = place(0, y).split(","), place(right, y).split(","), place(x, 0).split(",")[0]
        parts += [
            f'<line x1="{left_end[0]}" y1="{left_end[1]}" x2="{right_end[0]}" y2="{right_end[1]}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{float(left_end[1]) + 4}" text-anchor="end">{_figure(y)}</text>',
            f'<text x="{below}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_figure(x)}</text>',
        ]
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(place(x, y) for x, y in line)
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 14 + 18 * number}" fill="{colour}">{escape(name)}</text>',
        ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _figure(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1_000:g}k" if value >= 10_000 else f"{value:.3g}"

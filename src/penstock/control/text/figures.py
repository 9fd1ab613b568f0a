"""Format figures: sizes, durations, counts. The same in `status`, the live view and the proof."""

from __future__ import annotations

from datetime import UTC, datetime

UNKNOWN = "–"


def bytes_text(number: int | None) -> str:
    """`0 B`, `999 B`, `1.5 KiB`, `16 MiB`."""
    if number is None:
        return UNKNOWN
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"


def seconds_text(seconds: float | None) -> str:
    """`0 s`, `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.05:
        return "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for large, large_unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {large_unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def count_text(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def rate_text(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.1f}/s"


def moment_text(at: datetime | None) -> str:
    """`2026-05-04 12:00:03 UTC`."""
    return UNKNOWN if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def percent_text(fraction: float | None) -> str:
    """Return a percentage, rounded down: only what is done reads `100 %`."""
    return UNKNOWN if fraction is None else f"{int(fraction * 100)} %"


def of_about_text(number: int, estimate: int | None) -> str:
    """`900,000 of about 2,000,000`, or the number alone when nothing is known to come, or it came."""
    return f"{number:,}" if estimate is None or number >= estimate else f"{number:,} of about {estimate:,}"

"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest

from penstock.config.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("written", "expected"),
    [(0, 0), (1024, 1024), ("512", 512), ("16MiB", 2**24), ("16 MiB", 2**24), ("1.5kB", 1500), ("2GB", 2 * 10**9)],
)
def test_sizes_are_bytes(written: object, expected: int) -> None:
    assert parse_size(written) == expected


@pytest.mark.parametrize("written", ["16M", "big", "-1", -1, True, 1.5, "1.5B", None, "16mib"])
def test_other_sizes_are_refused_with_what_is_allowed(written: object) -> None:
    with pytest.raises(ValueError, match="16MiB"):
        parse_size(written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("200ms", 0.2),
        ("10m", 600.0),
        ("7d", 604800.0),
        ("1.5h", 5400.0),
        (3, 3.0),
        (0.25, 0.25),
        ("0s", 0.0),
        ("5", 5.0),
    ],
)
def test_durations_are_seconds(written: object, expected: float) -> None:
    assert parse_duration(written) == expected


@pytest.mark.parametrize("written", ["10 minutes", "ms", "-1s", -1, False, float("inf"), float("nan"), None, "1y"])
def test_other_durations_are_refused_with_what_is_allowed(written: object) -> None:
    with pytest.raises(ValueError, match="200ms"):
        parse_duration(written)

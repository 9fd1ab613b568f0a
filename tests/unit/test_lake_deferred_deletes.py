"""Files that leave at their time: not before it, a few at a time, and after a restart as well."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.destinations.lake import deferred_deletes
from penstock.destinations.lake.deferred_deletes import DeferredDeletes, remove_some


def made(folder: Path, *names: str) -> list[str]:
    files = [folder / name for name in names]
    for file in files:
        file.touch()
    return [str(file) for file in files]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def ago(seconds: float) -> float:
    return time.time() - seconds


@pytest.mark.parametrize(("longest", "most", "removed"), [(0.0, 100, 1), (60.0, 100, 5), (60.0, 3, 3)])
def test_as_much_is_removed_as_batches_may_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: float, most: int, removed: int
) -> None:
    monkeypatch.setattr(deferred_deletes, "LONGEST", longest)
    files = made(tmp_path, *map(str, range(5)))
    assert remove_some(files, most, "leaving.file_removed") == removed
    assert names(tmp_path) == [str(number) for number in range(removed, 5)]


def test_files_stay_until_their_time_and_lists_go_with_them(tmp_path: Path) -> None:
    files = DeferredDeletes(tmp_path / "lists")
    due, later = made(tmp_path, "due", "gone before"), made(tmp_path, "later")
    files.put(later, ago(-3600))
    files.put(due, ago(1))
    files.put([], ago(1))
    (tmp_path / "gone before").unlink()
    assert files.locations() == {*due, *later}
    assert files.remove_due() == 2
    assert (names(tmp_path), files.locations(), len(names(tmp_path / "lists"))) == (["later"], set(later), 1)
    assert files.remove_due() == 0


def test_a_list_that_is_empty_or_gone_is_passed_over(tmp_path: Path) -> None:
    files = DeferredDeletes(tmp_path / "lists")
    files.put(made(tmp_path, "a"), ago(3))
    files.put(made(tmp_path, "b"), ago(2))
    files.put(made(tmp_path, "c"), ago(1))
    first, second, _ = sorted((tmp_path / "lists").iterdir())
    first.write_text("")
    second.unlink()
    assert files.remove_due() == 1
    assert (names(tmp_path), names(tmp_path / "lists")) == (["a", "b"], [])


def test_a_few_at_a_time_the_first_first_and_anew_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred_deletes, "AT_ONCE", 3)
    files = DeferredDeletes(tmp_path / "lists")
    files.put(made(tmp_path, "c", "d", "e", "f"), ago(1))
    assert files.remove_due() == 3
    files.put(made(tmp_path, "a", "b"), ago(2))
    assert names(tmp_path) == ["a", "b", "f"]
    assert files.remove_due() == 3
    assert (names(tmp_path), names(tmp_path / "lists")) == ([], [])

    files.put(made(tmp_path, "c", "d", "e", "f"), ago(1))
    assert files.remove_due() == 3
    again = DeferredDeletes(tmp_path / "lists")
    assert _removed(again) == [3, 1]
    assert (names(tmp_path), names(tmp_path / "lists")) == ([], [])
    assert files.remove_due() == 1, "two that do the same do no harm"


def _removed(files: DeferredDeletes) -> Sequence[int]:
    return [files.remove_due(), files.remove_due()]


def test_a_damaged_list_removes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept.parquet"
    kept.write_bytes(b"rows")
    lists = DeferredDeletes(tmp_path / "lists")
    lists.put([str(kept)], due=1.0)
    (place,) = (tmp_path / "lists").iterdir()
    place.write_bytes(b"\xff" + place.read_bytes()[1:])
    lists.remove_due()
    assert kept.exists()
    assert not place.exists()

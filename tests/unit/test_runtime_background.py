"""Work that gives way has a lower priority, and who asked for it keeps the own."""

from __future__ import annotations

import os
import threading

import pytest

from penstock.runtime.background import NICENESS, in_background


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_work_gives_way() -> None:
    before = niceness()
    assert in_background(niceness) == min(19, before + NICENESS)
    assert niceness() == before
    assert in_background(niceness) == min(19, before + NICENESS)


def test_what_it_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0)

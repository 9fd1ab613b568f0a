"""Carry what log lines have in common (which source they are about) into threads, which do not inherit it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable


def inheriting() -> Callable[[], None]:
    """Return a function that, called in another thread, gives that thread what log lines carry in this one."""
    carried = contextvars.copy_context()

    def inherit() -> None:
        for variable, value in carried.items():
            variable.set(value)

    return inherit


def inherited(function: Callable[[], None]) -> Callable[[], None]:
    """Return the function, for another thread to run, with what log lines carry here."""
    inherit = inheriting()

    def run() -> None:
        inherit()
        function()

    return run

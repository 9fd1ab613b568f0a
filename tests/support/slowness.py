"""How much slower everything goes because other programs want the same processors."""

from __future__ import annotations

import threading
from pathlib import Path

SPIN_NANOSECONDS = 30_000_000


def slowness() -> float:
    """Return how many times longer a little work takes than it would with a processor to itself; 1.0 where the system
    does not tell. Only the time counts in which the work could have gone on and had to wait for a processor."""
    file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    if not file.exists():
        return 1.0
    worked, waited = _figures(file)
    while (now := _figures(file))[0] - worked < SPIN_NANOSECONDS:
        pass
    return 1.0 + (now[1] - waited) / (now[0] - worked)


def _figures(file: Path) -> tuple[int, int]:
    """Nanoseconds that this thread has worked, and waited for a processor."""
    worked, waited, _ = file.read_text().split()
    return int(worked), int(waited)

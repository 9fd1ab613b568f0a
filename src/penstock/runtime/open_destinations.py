"""One destination for all sources of a pipeline: opened by whoever first needs it, and closed once."""

from __future__ import annotations

import threading

from penstock.destinations.contract import TableDestination


class SharedDestination:
    def __init__(self, destination: TableDestination) -> None:
        self._destination, self._is_open = destination, False
        self._lock = threading.Lock()

    def opened(self) -> TableDestination:
        """Give the open destination. Raises what `open` raises; it may be called again."""
        with self._lock:
            if not self._is_open:
                self._destination.open()
                self._is_open = True
        return self._destination

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._destination.close()
                self._is_open = False

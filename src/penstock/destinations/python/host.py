"""Where a user's destination lives: in the driver as one object, or in each worker process as one made from its class.

`class` is `module:Class`, in a module beside the pipeline file or wherever Python finds modules.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import Protocol

from penstock.destinations.python.caller import Caller
from penstock.destinations.python.destination import Destination
from penstock.user_class import made_from


class Host(Protocol):
    """Give what calls the destination in this process."""

    def caller(self) -> Caller: ...


@dataclass(frozen=True)
class ObjectHost:
    """An object of this process. Cannot be pickled."""

    own: Caller

    def caller(self) -> Caller:
        return self.own


@dataclass(frozen=True)
class ClassHost:
    """A class, of which every process makes an object of its own. `config` is JSON: the arguments of the class."""

    name: str
    found_at: str
    config: str
    folder: str
    seconds: float

    def caller(self) -> Caller:
        with _MAKING:
            return _CALLERS.setdefault((os.getpid(), self), Caller(self.name, self.make, self.seconds))

    def make(self) -> Destination:
        """Import the class and make an object of it."""
        made = made_from(self.found_at, self.folder, json.loads(self.config))
        if not isinstance(made, Destination):
            raise TypeError(f"{self.found_at} is not a penstock.Destination")
        return made


_CALLERS: dict[tuple[int, ClassHost], Caller] = {}
_MAKING = threading.Lock()

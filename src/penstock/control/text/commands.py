"""Put the real file's name into commands in messages (`penstock resync FILE …`), so that they can be pasted.

What raises an error deep in the pipeline does not know the file; what shows the error does.
"""

from __future__ import annotations

import re

_FILE = re.compile(r"(\bpenstock (?:[a-z]+ )+)FILE\b")


def with_file(text: str, file: str) -> str:
    return _FILE.sub(lambda found: found[1] + file, text)

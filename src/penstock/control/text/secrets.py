"""Remove passwords from everything that is printed, whoever put them there."""

from __future__ import annotations

import re

_IN_URL = re.compile(r"(?<=://)([^:@/\s]*):\S*@")
_NAMED = re.compile(r"(?i)((?:password|passwd|secret|secret[_-]?key)[\"']?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&'\"]+)")


def scrub(text: str) -> str:
    """The text without passwords, neither those of URLs nor those of connection strings."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1:***@", text))

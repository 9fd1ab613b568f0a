"""Remove passwords, keys and tokens from everything that is printed, whoever put them there."""

from __future__ import annotations

import re

_IN_URL = re.compile(r"(?<=://)([^:@/\s]*):\S*@")
# As connection strings, properties and JSON write them: `password=…`, `"s3.secret-access-key": "…"`.
_NAMED = re.compile(
    r"(?i)((?:password|passwd|secret|credential|mask_salt|(?:access|account|api|private)[_.-]?key"
    r"|(?:auth|access|refresh|session|sas)[_.-]?token|\.token|[\"']token(?=[\"']))"
    r"[\w.-]*[\"']?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&'\"]+)"
)
_BEARER = re.compile(r"(?i)(\bauthorization[\"']?\s*[=:]\s*[\"']?\w+\s+|\bbearer\s+(?=\S*[\d_.]))[^\s\"',]{8,}")
_KNOWN = re.compile(r"\b(pst_|eyJ)[\w-]{16,}(?:\.[\w-]+)*")  # our own tokens, and JSON Web Tokens


def scrub(text: str) -> str:
    """Return the text without secrets: passwords of URLs, named ones, and tokens."""
    text = _NAMED.sub(r"\1***", _IN_URL.sub(r"\1:***@", text))
    return _KNOWN.sub(r"\1***", _BEARER.sub(r"\1***", text))

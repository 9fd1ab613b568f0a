"""Where a file or folder is: a path, a `file:` URI, or an address in another store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_path(location: str) -> Path | None:
    """Return the path of a local location (`/x`, `file:/x`, `file:///x`); None for any other store."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return None if "://" in location else Path(location)

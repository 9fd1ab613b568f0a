"""Where a file or folder is: a path, a `file:` URI, or an address in another store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit


def in_one_request(uri: str) -> str:
    """Return the URI by which `pyarrow.fs` writes a small file to S3 in one request, and not in three."""
    if not uri.startswith("s3://") or "allow_delayed_open=" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true"


def local_path(location: str) -> Path | None:
    """Return the path of a local location (`/x`, `file:/x`, `file:///x`); None for any other store."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return None if "://" in location else Path(location)

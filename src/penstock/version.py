"""The version of penstock. Apart from the package itself, so that every room may know it."""

from __future__ import annotations

__version__ = "0.1.0"

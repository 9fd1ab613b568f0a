"""uuid: its canonical 36 characters, as a string (Spark has no uuid type). The shape of these modules: codec.py."""

from __future__ import annotations

from penstock.decode.postgres.types.text import as_sent

SERVED = (as_sent(("uuid", 2950), exact="its 36 characters"),)

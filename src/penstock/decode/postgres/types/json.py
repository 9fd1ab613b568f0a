"""json and jsonb: their text, byte for byte, as a string. See codec.py for the shape of these modules.

Nothing is parsed: numbers of any size, key order and (for json) duplicate keys and white space stay what they were.
"""

from __future__ import annotations

from penstock.decode.postgres.types.text import as_sent

SERVED = (
    as_sent(
        ("json", 114),
        ("jsonb", 3802),
        ("jsonpath", 4072),
        exact="its text: numbers of any size, and in json duplicate keys and white space",
    ),
)

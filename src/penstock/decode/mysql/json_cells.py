"""MySQL's own text of a value (`texts.py`) as JSON, by kernels. Called by `render/` through the dialect.

| type                      | in JSON                                                                            |
|---------------------------|------------------------------------------------------------------------------------|
| integers, year, bit       | a number                                                                           |
| float, double             | a number                                                                           |
| decimal                   | text, digit for digit: a JSON number may lose some                                 |
| json (MySQL)              | the JSON itself; MariaDB's is text                                                 |
| binary, blob, geometry    | base64                                                                             |
| datetime, timestamp       | ISO 8601 with T and, for timestamp, Z; what is no date stays as it is              |
| anything else             | its text                                                                           |

With `raw`, moments are their text: what faucet's readers expect.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decode.json_escapes import base64_texts, octets_of, quoted, quoted_text
from penstock.decode.mysql.texts import is_number, octets
from penstock.decode.mysql.types import DATE, DATETIME2, JSON, NEWDECIMAL, TIME2, TIMESTAMP2, YEAR, arrow_type
from penstock.model.table import ColumnType

NO_DATE = r"^0000|^\d{4}-00|^\d{4}-\d{2}-00"
_SIMPLE = frozenset({DATE, TIME2, NEWDECIMAL, YEAR})  # digits and signs alone


def json_texts(type: ColumnType, texts: pa.Array, *, raw: bool = False) -> pa.Array:
    """Return the JSON of each text (a string array); null where it is null."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.string())
    if type.carried_as == "text":
        return quoted_text(texts)
    if is_number(type):
        return _numbers(texts)
    if type.oid == JSON:
        return texts
    if pa.types.is_binary(arrow_type(type)):
        return quoted(base64_texts(octets(texts.cast(pa.binary()))[0]))
    if type.oid in (DATETIME2, TIMESTAMP2):
        return quoted(texts if raw else iso_moments(type, texts))
    return quoted(texts) if type.oid in _SIMPLE else quoted_text(texts)


def iso_moments(type: ColumnType, texts: pa.Array) -> pa.Array:
    """Return moments as ISO 8601 writes them. Those that are no dates stay as they are."""
    made = pc.replace_substring(texts, " ", "T")
    if type.oid == TIMESTAMP2:
        made = pc.binary_join_element_wise(made, "Z", "")
    if not (octets_of(texts) == ord("0")).any():
        return made
    odd = pc.match_substring_regex(texts, NO_DATE)
    return pc.if_else(odd, texts, made) if pc.any(odd).as_py() else made


def _numbers(texts: pa.Array) -> pa.Array:
    """As a whole number, a zero below zero would lose its sign."""
    signed = pc.equal(texts, "-0")
    return pc.if_else(signed, "-0.0", texts) if pc.any(signed).as_py() else texts

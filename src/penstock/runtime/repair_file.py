"""The file of a repair: the rows that `penstock verify` wants put right, for the run that commits them (`pins.py`).

Two Arrow streams, one behind the other: the rows, with their keys and rescued cells as further columns, and the keys
that are touched. The version, and what else there is to say, is metadata of the first. Nothing in it is code.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa

from penstock.fold.net_effect import NetEffect
from penstock.model.record import UnreadableRecord, read_record, write_record

KIND, VERSION = "repair", 1
_RECORD = b"penstock"


def write_repair(net: NetEffect, folder: Path) -> Path:
    """Write upserts and deletes by key, which is all that a repair consists of."""
    if net.truncated or net.fetches or net.steps is not None or net.removals is not None or net.upsert_keys is None:
        raise ValueError("a repair consists of whole rows and of keys")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuid.uuid4().hex}.rows"
    unfinished = path.with_suffix(".unfinished")
    further = [net.upsert_keys, *([] if net.rescued is None else [net.rescued])]
    fields = [*net.upserts.schema, *(pa.field("", column.type) for column in further)]
    about = write_record(KIND, VERSION, {"changes": net.changes, "rescued": net.rescued is not None})
    rows = pa.Table.from_arrays([*net.upserts.columns, *further], schema=pa.schema(fields, {_RECORD: about.encode()}))
    touched = pa.table({"key": net.touched_keys})
    with pa.OSFile(str(unfinished), "wb") as file:
        for table in (rows, touched):
            with pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
    return unfinished.replace(path)


def read_repair(path: Path) -> NetEffect:
    """Read what `write_repair` wrote; OSError when the file is not there, UnreadableRecord when it is another."""
    buffer = pa.py_buffer(path.read_bytes())
    try:
        reader = pa.BufferReader(buffer)
        rows, touched = (pa.ipc.open_stream(reader).read_all() for _ in range(2))
        rows.validate(full=True)
        touched.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableRecord(f"the file of a repair is not what penstock writes: {error}") from error
    about = read_record((rows.schema.metadata or {}).get(_RECORD, b"").decode("utf-8", "replace"), KIND, VERSION)
    rescued = about.flag("rescued")
    width = rows.num_columns - (2 if rescued else 1)
    if width < 0 or touched.num_columns != 1:
        raise UnreadableRecord("the file of a repair lacks its keys")
    return NetEffect(
        truncated=False,
        upserts=rows.select(range(width)).replace_schema_metadata(None),
        upsert_keys=rows.column(width).combine_chunks(),
        touched_keys=touched.column(0).combine_chunks(),
        fetches=(),
        changes=about.integer("changes"),
        last_commit_time=0,
        rescued=rows.column(width + 1).combine_chunks() if rescued else None,
    )

"""Where capture goes on, and whether the server still has what follows: a gap is found, never passed over.

The log carries, beside its end, which server it is of (`system_id`) and a state: the file's name, when that file was
made, and MariaDB's GTIDs of the transactions that have ended. A server that was reset, restored or exchanged has
another file under the same name, or other GTIDs at the same place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import GapError
from penstock.model.position import Position
from penstock.source.mysql.connect import Address, Connection, endpoint, is_mariadb, named_rows, rows
from penstock.source.mysql.events import START_OVER
from penstock.source.mysql.positions import file_number, position_of
from penstock.source.sink import Origin


@dataclass(frozen=True)
class LogState:
    """What goes on from the log's end. `created` is 0 while it is not known."""

    file: str
    created: int = 0
    gtids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"file": self.file, "created": self.created, "gtids": dict(self.gtids)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LogState:
        raw = json.loads(text)
        return cls(raw["file"], raw["created"], raw["gtids"])


def identity(connection: Connection, address: Address) -> str:
    """Return what tells the server from others: MySQL's uuid, MariaDB's server id."""
    variable = "server_id" if is_mariadb(connection) else "server_uuid"
    return str(rows(connection, address, f"SELECT @@GLOBAL.{variable}")[0][0])


def gtids_at(connection: Connection, address: Address, file: str, offset: int) -> dict[str, str] | None:
    """Return MariaDB's last GTID of each domain at a place of the binlog; None when it is no place of it."""
    if not is_mariadb(connection):
        return {}
    ((found,),) = rows(connection, address, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))
    if found is None:
        return None
    text = found.decode() if isinstance(found, bytes) else str(found)
    return {one.partition("-")[0]: one for one in text.split(",") if one}


def find_gap(connection: Connection, address: Address, end: Position, origin: Origin) -> GapError | None:
    """Return the gap between a log that ends there and the server's binlogs, if one shows."""
    where, state = endpoint(address), LogState.from_json(origin.state)
    found = identity(connection, address)
    if found != origin.system_id:
        return GapError(
            f"the change log was captured from another server than {where} ({origin.system_id}, not {found})",
            f"Point source.url at the former one. {START_OVER}",
        )
    logs = {str(one["log_name"]): int(one["file_size"]) for one in named_rows(connection, address, "SHOW BINARY LOGS")}
    offset = end & 0xFFFFFFFF
    if file_number(end) != file_number(position_of(state.file, 0)):
        return GapError(f"the change log's end is not in the binlog file {state.file} that it names", START_OVER)
    if state.file not in logs:
        oldest = min(logs, default="none")
        return GapError(
            f"the server at {where} no longer has the binlog file {state.file}, where the change log ends; its oldest"
            f" is {oldest}: changes in between are gone, or it was reset",
            START_OVER,
        )
    if logs[state.file] < offset:
        return GapError(
            f"the binlog file {state.file} of {where} ends at {logs[state.file]}, before the change log's end at"
            f" {offset}: the server was reset or restored",
            START_OVER,
        )
    gtids = gtids_at(connection, address, state.file, offset)
    if gtids is None or gtids != dict(state.gtids):
        return GapError(
            f"the server at {where} has other transactions before {state.file}:{offset} than the change log: it was"
            " reset or restored, or is another server",
            START_OVER,
        )
    return None

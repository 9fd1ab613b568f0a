"""Where capture goes on, and whether the server still has what follows: a gap is found, never passed over.

The log carries, beside its end, which server it is of (`Origin.stream`) and a state: the file's name, when that file
was made, and the GTIDs of the transactions that have ended. A server that was reset, restored or exchanged has another
file under the same name, or other GTIDs. At another server, which `source.failover` announces, capture goes on by GTID.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import GapError, SourceUnreachable
from penstock.model.position import Position
from penstock.source.mysql.connect import Address, Connection, endpoint, is_mariadb, named_rows, rows
from penstock.source.mysql.events import START_OVER
from penstock.source.mysql.gtids import GtidSet, LastOfSources, owned
from penstock.source.mysql.positions import epoch_of, file_number, head, position_of
from penstock.source.sink import Origin

OWNED_SECONDS = 60.0


@dataclass(frozen=True)
class LogState:
    """What goes on from the log's end. `created` is 0 while it is not known."""

    file: str
    created: int = 0
    gtids: Mapping[str, str] = field(default_factory=dict)  # none: they are not known
    taking_over: bool = False  # never in the log: the first transaction of another server is still to come

    def to_json(self) -> str:
        return json.dumps({"file": self.file, "created": self.created, "gtids": dict(self.gtids)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LogState:
        raw = json.loads(text)
        return cls(raw["file"], raw["created"], raw["gtids"])


def identity(connection: Connection, address: Address) -> str:
    """Return what distinguishes the server from others: MySQL's uuid, MariaDB's server id."""
    variable = "server_id" if is_mariadb(connection) else "server_uuid"
    return str(rows(connection, address, f"SELECT @@GLOBAL.{variable}")[0][0])


def gtids_at(connection: Connection, address: Address, file: str, offset: int) -> dict[str, str] | None:
    """Return MariaDB's last GTID of each domain at a place of the binlog; None when it is no place of it.

    MySQL's are known a moment later (`settled_gtids`).
    """
    if not is_mariadb(connection):
        return {}
    ((found,),) = rows(connection, address, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))
    if found is None:
        return None
    text = found.decode() if isinstance(found, bytes) else str(found)
    return {one.partition("-")[0]: one for one in text.split(",") if one}


def await_visible(connection: Connection, address: Address) -> None:
    """Wait until everything that MySQL's binlog has now can be seen by readers: it is in the binlog before that.

    Its GTIDs are owned until then, and executed afterwards.
    """
    waited = owned(_global(connection, address, "gtid_owned"))
    deadline = time.monotonic() + OWNED_SECONDS
    while waited:
        current = owned(_global(connection, address, "gtid_owned"))
        if not waited.meets(current):
            return
        if time.monotonic() > deadline:
            raise SourceUnreachable(
                f"transactions at {endpoint(address)} are being committed for a minute: {current.text()[:200]}",
                "See SHOW PROCESSLIST there; it is tried again",
            )
        time.sleep(0.002)


def settled_gtids(connection: Connection, address: Address) -> tuple[GtidSet, Position]:
    """Return a set that has all GTIDs before now, and a position before which all those of the set are."""
    await_visible(connection, address)
    executed = GtidSet.from_text(_global(connection, address, "gtid_executed"))
    return executed, position_of(*head(connection, address), address.epoch)


def after_gtids(state: LogState, *, mariadb: bool) -> str | bytes:
    """Return what asks a server for everything that follows the log's transactions."""
    return ",".join(state.gtids.values()) if mariadb else GtidSet(state.gtids).encoded()


def _global(connection: Connection, address: Address, name: str) -> str:
    return str(rows(connection, address, f"SELECT @@GLOBAL.{name}")[0][0]).replace("\n", "")


def find_gap(connection: Connection, address: Address, end: Position, origin: Origin) -> GapError | None:
    """Return the gap between a log that ends there and the server's binlogs, if one shows."""
    state, found = LogState.from_json(origin.state), identity(connection, address)
    where, epoch = endpoint(address), epoch_of(end)
    if address.epoch == epoch and found == origin.stream:
        return _gap_in_files(connection, address, end, state)
    if address.epoch != epoch + 1:
        if address.epoch == epoch:
            what = f"the change log was captured from another server than {where} ({origin.stream}, not {found})"
            way = f"If it is a replica that took over, set `failover: {epoch + 1}` under `source:`, and capture goes on"
            return GapError(what, f"{way} by GTID; else point source.url at the former one. {START_OVER}")
        what = f"source.failover is {address.epoch}, and the change log was written with {epoch}"
        return GapError(what, f"Set it to {epoch}, or to {epoch + 1} where another server took over. {START_OVER}")
    if not state.gtids:
        what = f"the change log's end has no GTID, so that what follows it at {where} cannot be known"
        return GapError(what, f"Point source.url at the former server. {START_OVER}")
    if is_mariadb(connection):
        # It would wait for a GTID that is still to come, and says itself if binlogs after one are purged.
        written = LastOfSources(_global(connection, address, "gtid_binlog_state"))
        follows, kept = all(one in written for one in state.gtids.values()), True
    else:
        asked = "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed), GTID_SUBSET(@@GLOBAL.gtid_purged, %s)"
        ((follows, kept),) = rows(connection, address, asked, (GtidSet(state.gtids).text(),) * 2)
    if not follows:
        what = f"the server at {where} never executed some of the transactions that the change log has"
        return GapError(what, f"It did not follow the former server to its end: choose another replica. {START_OVER}")
    if not kept:
        what = f"the server at {where} no longer has the binlogs of transactions that the change log does not have"
        return GapError(what, START_OVER)
    return None


def _gap_in_files(connection: Connection, address: Address, end: Position, state: LogState) -> GapError | None:
    where = endpoint(address)
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
    if is_mariadb(connection):
        gtids = gtids_at(connection, address, state.file, offset)
        is_other = gtids is None or gtids != dict(state.gtids)
    else:
        executed = "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)"
        is_other = not rows(connection, address, executed, (GtidSet(state.gtids).text(),))[0][0]
    if is_other:
        return GapError(
            f"the server at {where} has other transactions before {state.file}:{offset} than the change log: it was"
            " reset or restored, or is another server",
            START_OVER,
        )
    return None

"""What must be fixed at a MySQL or MariaDB server before its tables can be followed, each with its statement."""

from __future__ import annotations

from penstock.source.finding import Finding
from penstock.source.mysql.catalogue import discover
from penstock.source.mysql.connect import Address, Connection, is_mariadb, rows
from penstock.source.mysql.positions import version
from penstock.source.snapshot_contract import WantedTables

_SETTINGS = (
    ("binlog_format", "ROW", "SET GLOBAL binlog_format = ROW", "changes would be there as statements"),
    ("binlog_row_image", "FULL", "SET GLOBAL binlog_row_image = FULL", "rows would lack columns"),
    ("binlog_row_metadata", "FULL", "SET GLOBAL binlog_row_metadata = FULL", "the binlog would not name its columns"),
)
_SHORT_SECONDS = 86_400


def check_server(connection: Connection, address: Address, wanted: WantedTables) -> list[Finding]:
    found: list[Finding] = []
    oldest, product = ((10, 6), "MariaDB 10.6") if is_mariadb(connection) else ((8, 0), "MySQL 8.0")
    if version(connection) < oldest:
        found.append(Finding("error", f"the server is older than {product}", "Upgrade it"))
    if variable(connection, address, "log_bin") not in ("1", "ON"):
        fix = "Put log_bin and a server_id into the server's configuration and restart it"
        return [*found, Finding("error", "the server writes no binlog", fix)]
    for name, needed, fix, why in _SETTINGS:
        value = variable(connection, address, name)
        if value.upper() != needed:
            text = f"{name} is {value or 'unknown'}: {why}"
            found.append(Finding("error", text, f"{fix} (and in the configuration; then reconnect applications)"))
    found += _rights(connection, address)
    if not is_mariadb(connection):
        found += _of_mysql(connection, address)
    seconds = kept_seconds(connection, address)
    if 0 < seconds < _SHORT_SECONDS:
        text = f"binlogs are kept for {seconds} s only: a pipeline that is stopped for longer copies everything again"
        found.append(Finding("warning", text, "SET GLOBAL binlog_expire_logs_seconds = 604800"))
    for one in discover(connection, address, wanted.wants, cascades=True):
        table = one.schema.table
        if one.trouble:
            found.append(Finding("error", f"table {table}: {one.trouble}", one.solution, table))
        elif not one.schema.key:
            text = f"table {table} has no primary key: it is followed by whole rows, which is slow"
            found.append(Finding("warning", text, f"ALTER TABLE {table} ADD PRIMARY KEY (…)", table))
    return found


def _of_mysql(connection: Connection, address: Address) -> list[Finding]:
    found: list[Finding] = []
    if variable(connection, address, "binlog_row_value_options"):
        text = "binlog_row_value_options is PARTIAL_JSON: of a changed document the binlog would have a part alone"
        fix = "SET GLOBAL binlog_row_value_options = '' (and in the configuration; then reconnect applications)"
        found.append(Finding("error", text, fix))
    if variable(connection, address, "gtid_mode").upper() != "ON":
        on = "Set gtid_mode = ON and enforce_gtid_consistency = ON (docs/source-mysql.md)"
        text = "gtid_mode is not ON: a replica that takes over cannot be followed, and each copy begins a binlog file"
        found.append(Finding("warning", text, on))
        if not _grants(connection, address) & {"RELOAD", "ALL PRIVILEGES"}:
            text = "gtid_mode is not ON and the account lacks the right RELOAD: tables cannot be copied"
            found.append(Finding("error", text, f"{on}, or GRANT RELOAD ON *.* TO '{address.user}'@'%'"))
    return found


def _grants(connection: Connection, address: Address) -> set[str]:
    """Return the account's rights on everything."""
    found: set[str] = set()
    for one in rows(connection, address, "SHOW GRANTS"):
        rights, separator, _ = str(one[0]).upper().partition(" ON *.* TO ")
        if separator:
            found |= {right.strip() for right in rights.removeprefix("GRANT ").split(",")}
    return found


def _rights(connection: Connection, address: Address) -> list[Finding]:
    grants = _grants(connection, address)
    if "ALL PRIVILEGES" in grants:
        return []
    monitor = "BINLOG MONITOR" if is_mariadb(connection) else "REPLICATION CLIENT"
    needed = {
        "REPLICATION SLAVE": ("REPLICATION SLAVE", "REPLICATION REPLICA"),
        monitor: ("BINLOG MONITOR", "REPLICATION CLIENT"),
    }
    return [
        Finding("error", f"the account lacks the right {right}", f"GRANT {right} ON *.* TO '{address.user}'@'%'")
        for right, names in needed.items()
        if not grants.intersection(names)
    ]


def kept_seconds(connection: Connection, address: Address) -> int:
    """Return for how long the server keeps a binlog; 0: for ever."""
    days = int(float(variable(connection, address, "expire_logs_days") or "0") * 86_400)
    return int(variable(connection, address, "binlog_expire_logs_seconds") or "0") or days


def variable(connection: Connection, address: Address, name: str) -> str:
    found = rows(connection, address, "SHOW GLOBAL VARIABLES LIKE %s", (name,))
    return str(found[0][1]) if found else ""

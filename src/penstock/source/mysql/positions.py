"""Places in the binlog as positions: an epoch (10 bits), the file's number (22) and the offset in it (32).

The epoch counts failovers (`source.failover`), so that what another server has comes after all that the former one had.

A transaction's own position is where it begins: that is known before its rows come, and always below 4 GiB. The
position after it is where its last event ends, or the beginning of the next file where that is past 4 GiB.
"""

from __future__ import annotations

import re

from penstock.errors import SourceMisconfigured
from penstock.model.position import Position
from penstock.model.position import parse_position as parse_hexadecimal
from penstock.source.mysql.connect import Address, Connection, is_mariadb, named_rows

FIRST_OFFSET = 4  # of a file's first event
_EPOCH_AT = 22
_TEXT = re.compile(r"(?:([0-9]{1,4})/)?(?:.*\.)?([0-9]{1,7}):([0-9]{1,10})")


def position_of(file: str, offset: int, epoch: int = 0) -> Position:
    """Return the position of a place in a file, whose name ends with its number."""
    number = int(file.rpartition(".")[2]) | epoch << _EPOCH_AT
    if offset > 0xFFFFFFFF:
        return number + 1 << 32 | FIRST_OFFSET
    return number << 32 | offset


def epoch_of(position: Position) -> int:
    """Return how many servers came before the one whose place it is."""
    return position >> 32 + _EPOCH_AT


def file_number(position: Position) -> int:
    return position >> 32 & (1 << _EPOCH_AT) - 1


def position_text(position: Position) -> str:
    """Write a position as number of the file and offset: `000012:4711`; after a failover `1/000012:4711`."""
    epoch = epoch_of(position)
    return (f"{epoch}/" if epoch else "") + f"{file_number(position):06d}:{position & 0xFFFFFFFF}"


def parse_position(text: str) -> Position:
    """Read `000012:4711`, also with the file's whole name, or a position as reports write it."""
    if (found := _TEXT.fullmatch(text)) is not None:
        return int(found[1] or 0) << 32 + _EPOCH_AT | int(found[2]) << 32 | int(found[3])
    try:
        return parse_hexadecimal(text)
    except ValueError:
        raise ValueError(f"{text} is no position; one looks like 000012:4711, or C/1267") from None


def head(connection: Connection, address: Address) -> tuple[str, int]:
    """Return the name of the last binlog file and where it ends. SourceMisconfigured when there is none."""
    statement = "SHOW MASTER STATUS"
    if not is_mariadb(connection) and version(connection) >= (8, 4):
        statement = "SHOW BINARY LOG STATUS"
    found = named_rows(connection, address, statement)
    if not found:
        raise SourceMisconfigured(
            "the server writes no binlog", "Set log_bin in its configuration, and restart it (docs/source-mysql.md)"
        )
    return str(found[0]["file"]), int(found[0]["position"])


def version(connection: Connection) -> tuple[int, int]:
    numbers = re.findall(r"\d+", connection.get_server_info().removeprefix("5.5.5-"))
    return int(numbers[0]), int(numbers[1])

"""The binlog's protocol: how a dump is asked for, and what the heads of its events say. Nothing here keeps state."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import uuid
import zlib
from dataclasses import dataclass

import pymysql

from penstock.errors import GapError, SourceError, SourceMisconfigured, SourceUnreachable
from penstock.source.mysql.connect import Address, connect, endpoint, is_mariadb, source_errors

QUERY, STOP, ROTATE, FORMAT, XID, TABLE_MAP, HEARTBEAT, ROWS_QUERY = 2, 3, 4, 15, 16, 19, 27, 29
GTID, ANONYMOUS_GTID, XA_PREPARE, PARTIAL_UPDATE, PAYLOAD, HEARTBEAT_2, GTID_TAGGED = 33, 34, 38, 39, 40, 41, 42
MARIA_GTID, QUERY_COMPRESSED = 162, 165
INSERTS, UPDATES, DELETES = (23, 30, 166, 169), (24, 31, 167, 170), (25, 32, 168, 171)
HEADER = 19
PACKET = 5  # bytes before each event: length, number, status
_LENGTH = struct.Struct("<I")
_LARGE = 0xFFFFFF  # the length of a packet that the next one continues
CHUNK = 1 << 20
TICK_SECONDS = 0.1
_REGISTER, _DUMP, _DUMP_GTID, _THROUGH_GTIDS = 0x15, 0x12, 0x1E, 4
_PURGED = 1236


@dataclass(frozen=True)
class Block:
    """Some events in the order in which they came: their packets behind one another, and where each event begins.

    It ends where the next packet begins.
    """

    content: bytes
    starts: list[int]

    def __len__(self) -> int:
        return len(self.starts)

    def event(self, number: int) -> bytes:
        starts = self.starts
        end = starts[number + 1] - PACKET if number + 1 < len(starts) else len(self.content)
        return self.content[starts[number] : end]


@dataclass(frozen=True)
class Gtid:
    """The beginning of a transaction. `standalone`: it is one statement, without rows. `text` is "" without GTIDs."""

    number: int
    time: int  # µs since 1970
    text: str
    standalone: bool | None  # None: the next event tells
    prepared: bool = False


class BinlogStream:
    """One dump connection."""

    def __init__(
        self, address: Address, server_id: int, file: str, offset: int, heartbeat: float, after: str | bytes = b""
    ) -> None:
        """Read from a place of a file on, or, with `after`, what follows these GTIDs.

        `after` is MySQL's set as bytes, or MariaDB's last ones as text.
        """
        self._address = address
        self._connection = connect(address, purpose="penstock capture")
        self.mariadb = is_mariadb(self._connection)
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        try:
            with source_errors("asking for the binlog", address):
                self._ask(server_id, file, offset, heartbeat, after)
        except BaseException:
            self.close()
            raise
        self._socket: socket.socket | ssl.SSLSocket = self._connection._sock
        self._socket.settimeout(TICK_SECONDS)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def _ask(self, server_id: int, file: str, offset: int, heartbeat: float, after: str | bytes) -> None:
        connection = self._connection
        with connection.cursor() as cursor:
            cursor.execute(
                "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32',"
                f" @master_heartbeat_period = {int(heartbeat * 1e9)}, @source_heartbeat_period = {int(heartbeat * 1e9)}"
            )
            if self.mariadb:
                cursor.execute("SET @mariadb_slave_capability = 4")
                if isinstance(after, str):
                    cursor.execute("SET @slave_connect_state = %s, @slave_gtid_strict_mode = 0", (after,))
            else:
                name = f"70656e73-746f-636b-0000-{server_id:012d}"
                cursor.execute(f"SET @slave_uuid = '{name}', @replica_uuid = '{name}'")
        connection._execute_command(_REGISTER, struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0))
        connection._read_packet()
        if after and isinstance(after, bytes):
            request = struct.pack("<HIIQI", _THROUGH_GTIDS, server_id, 0, 4, len(after)) + after
            connection._execute_command(_DUMP_GTID, request)
        else:
            first = b"" if after else file.encode()
            connection._execute_command(_DUMP, struct.pack("<IHI", 4 if after else offset, 0, server_id) + first)

    def read(self) -> list[Block] | None:
        """Return the events that have come, or None when none came for a moment."""
        if not self._receive():
            return None
        found, begin = list[Block](), 0
        while True:
            at, starts = begin, list[int]()
            if not self._parts:
                at = self._walk(begin, starts)
            found.append(Block(bytes(memoryview(self._buffer)[begin:at]), starts))
            begin, packet = self._joined(at)
            if packet is None:
                break
            found.append(Block(packet, [1]))
        del self._buffer[:begin]
        return found

    def _walk(self, at: int, starts: list[int]) -> int:
        """Find whole packets from there on, up to a large one; return where they end."""
        buffer, length_at, add = self._buffer, _LENGTH.unpack_from, starts.append
        begin, last, filled = at, len(buffer) - 4, len(buffer)
        while at < last:
            size = length_at(buffer, at)[0] & _LARGE
            following = at + 4 + size
            if following > filled or size == _LARGE:
                break
            if buffer[at + 4]:
                raise self._ended(bytes(memoryview(buffer)[at + 4 : following]))
            add(at + PACKET - begin)
            at = following
        return at

    def _joined(self, at: int) -> tuple[int, bytes | None]:
        """Return where to go on, and a packet that came in parts if its last one is there."""
        buffer = self._buffer
        while len(buffer) - at >= 4:
            size = _LENGTH.unpack_from(buffer, at)[0] & _LARGE
            if len(buffer) - at < 4 + size or (size < _LARGE and not self._parts):
                break
            self._parts.append(bytes(memoryview(buffer)[at + 4 : at + 4 + size]))
            at += 4 + size
            if size < _LARGE:
                packet, self._parts = b"".join(self._parts), []
                if packet[:1] != b"\0":
                    raise self._ended(packet)
                return at, packet
        return at, None

    def _receive(self) -> bool:
        """Add what there is to the buffer; return whether anything came. TLS hands it out in small pieces."""
        buffer, taken = self._buffer, 0
        try:
            while True:
                piece = self._socket.recv(CHUNK)
                if not piece:
                    raise self._lost("the server closed it")
                buffer += piece
                taken += len(piece)
                if taken >= CHUNK or not self._is_ready():
                    return True
        except (TimeoutError, ssl.SSLWantReadError):
            return taken > 0
        except OSError as error:
            raise self._lost(str(error)) from None

    def _is_ready(self) -> bool:
        """Return whether more has come already."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(self._poll.poll(0))

    def close(self) -> None:
        try:
            self._connection._force_close()
        except (pymysql.Error, OSError):
            return

    def _lost(self, why: str) -> SourceUnreachable:
        return SourceUnreachable(
            f"the binlog stream from {endpoint(self._address)} broke: {why}", "Check the server; it is tried again"
        )

    def _ended(self, packet: bytes) -> SourceError:
        if packet[:1] != b"\xff":
            return self._lost("the server ended it")
        (code,) = struct.unpack_from("<H", packet, 1)
        message = " ".join(packet[9:].decode(errors="replace").split())
        if code == _PURGED and ("same" in message or "server_uuid/server_id" in message):
            return SourceMisconfigured(
                f"another replica of {endpoint(self._address)} reads under the same server_id: {message}",
                "Give source.server_id a number that no other replica has",
            )
        if code == _PURGED:
            return GapError(
                f"the binlog of {endpoint(self._address)} does not go on where the change log ends: {message}",
                START_OVER,
            )
        if code in (1227, 1045):
            return SourceMisconfigured(
                f"the account may not read the binlog: {message}", "GRANT REPLICATION SLAVE ON *.* TO the account"
            )
        return self._lost(f"{message} ({code})")


START_OVER = "Run `penstock reset`, with which all tables are copied again; keep binlogs longer (docs/source-mysql.md)"


def check_sum(event: bytes) -> bool:
    """Return whether the last four bytes are the checksum of those before."""
    return zlib.crc32(memoryview(event)[:-4]) == int.from_bytes(event[-4:], "little")


def read_gtid(kind: int, event: bytes) -> Gtid:
    """Read a GTID event without its checksum."""
    seconds, _, server = struct.unpack_from("<IBI", event)
    body = memoryview(event)[HEADER:]
    if kind == MARIA_GTID:
        sequence, domain, flags = struct.unpack_from("<QIB", body)
        return Gtid(sequence, seconds * 1_000_000, f"{domain}-{server}-{sequence}", bool(flags & 1), bool(flags & 64))
    (number,) = struct.unpack_from("<q", body, 17)
    time = seconds * 1_000_000
    if len(body) >= 49:
        time = int.from_bytes(body[42:49], "little") & (1 << 55) - 1
    text = f"{uuid.UUID(bytes=bytes(body[1:17]))}:{number}" if kind == GTID else ""
    return Gtid(max(number, 0), time, text, None)


def read_query(kind: int, event: bytes) -> tuple[str, str]:
    """Return database and text of a QUERY event without its checksum."""
    body = event[HEADER:]
    size, variables = body[8], int.from_bytes(body[11:13], "little")
    at = 13 + variables
    database, text = body[at : at + size], body[at + size + 1 :]
    if kind == QUERY_COMPRESSED:
        text = inflated(text)
    return database.decode(errors="replace"), text.decode(errors="replace")


def inflated(content: bytes) -> bytes:
    """Unpack MariaDB's compression: a byte whose low three bits say how many bytes of length follow, then zlib."""
    return zlib.decompress(content[1 + (content[0] & 7) :])

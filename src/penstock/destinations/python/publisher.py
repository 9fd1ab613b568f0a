"""The writer of one shard of a user's destination: events in pieces, and the place behind each.

A destination that keeps its own position gets the place as `events.position` with every piece, and whoever opens the
shard asks for it: each event comes once. For any other the place is kept in a folder, behind the pieces that are
durable: after a crash, the pieces since then come again.

    {shard}/_places/…     how far the shard is; of a destination with a position of its own: that it has stored one
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from penstock.destinations.places.chain import Chain, chain_in
from penstock.destinations.places.folder import Folder
from penstock.destinations.python.batch import Events
from penstock.destinations.python.caller import Raised
from penstock.destinations.python.destination import Delivery, Destination, keeps_position
from penstock.destinations.python.events import owner_of
from penstock.destinations.python.host import Host
from penstock.destinations.spool import Progress, Publication, Spool, sliced
from penstock.destinations.stream_contract import Published, Records, ShardPlace
from penstock.errors import DestinationUnreachable, StreamBroken, TableError, TableFailed, TablesRefused
from penstock.failpoints import reach
from penstock.model.place import Place
from penstock.model.table import TableId, TableSchema

PLACES = "_places"
BYTES_AT_ONCE = 16 << 20
RECORD_EVERY = 0.5  # seconds: what was written since is written again after a crash
FIX_IT = "Correct the destination's class, or the data that it does not take; then `penstock retry`"

Result = TypeVar("Result")
_PLACE_NAME = re.compile(r'"((?:[^"]|"")*)"\."((?:[^"]|"")*)"')


@dataclass
class PythonPublisher:
    """`stream` is the shard's name to the user, `most` how many events a call gets at most.

    `start` is the place of a shard that has none yet, `history` the id of the change log that places are of.
    """

    host: Host
    folder: Folder
    stream: str
    history: str
    start: Place
    most: int
    _progress: Progress | None = field(default=None, repr=False)
    _own: bool = False  # the destination keeps the position
    _stored: str | None = None  # what it has stored
    _chain: Chain | None = None
    _recorded_at: float = 0.0
    _accepted: bool = False  # something is accepted that is not known to be durable

    def open(self) -> ShardPlace:
        self._chain = chain_in(self.folder.under(PLACES))
        record = self._chain.open() or {}
        self._own, self._accepted = self._call(keeps_position), False
        kept = Progress.from_text(record["progress"]) if "progress" in record else Progress(ShardPlace(self.start))
        if self._own:
            self._stored = self._call(lambda destination: destination.position(self.stream))
            kept = self._read(self._stored, kept, had_one="own" in record)
            if self._stored is not None and "own" not in record:
                self._chain.append({"own": True})
        elif "own" in record:
            raise StreamBroken(
                f"{self.stream}: its class stored the position and has no method `position` any more",
                "Put the method back, or start a new stream: give the destination another `name`",
            )
        self._progress = kept
        return kept.at

    def publish(self, records: Iterable[Records], upto: Callable[[], ShardPlace]) -> Published:
        with Spool() as spool:
            schemas: dict[str, TableSchema] = {}
            for some in records:
                spool.add(some)
                schemas |= some.schemas
            work = Publication(self._opened, upto())
            end = work.end
            reach("publish.file_written")
            self._begin_copies(work)
            if spool.records <= work.first:
                self._move(end)
            for piece, progress in _pieces(spool, self.most, work, end):
                self._write(piece, progress, work, schemas)
                if progress is not end:
                    reach("publish.piece_out")
            self._settle()
            reach("publish.committed")
            return Published(spool.records, spool.bytes)

    def advance(self, upto: ShardPlace) -> None:
        self._move(self._opened.moved(upto))
        self._settle()

    @property
    def _opened(self) -> Progress:
        if self._progress is None:
            raise ValueError("the shard is not open")
        return self._progress

    def _call(self, function: Callable[[Destination], Result]) -> Result:
        try:
            return self.host.caller().call(function)
        except Raised as error:
            raise DestinationUnreachable(f"{self.stream}: {error}", "It is tried again") from error

    def _read(self, text: str | None, kept: Progress, *, had_one: bool) -> Progress:
        """Return what the destination's position says; `kept` is where a stream is that has none yet."""
        if text is None:
            if had_one:
                raise StreamBroken(
                    f"{self.stream}: the destination had stored a position, and has none now: nobody can say what it "
                    "holds",
                    "Restore its data, or start a new stream: give the destination another `name`",
                )
            return kept
        history, _, progress = text.partition(" ")
        if history != self.history:
            raise StreamBroken(
                f"{self.stream}: the destination's position is of another change log than the present one",
                "Remove the stored position and what was written before it, or give the destination another `name`",
            )
        try:
            return Progress.from_text(progress)
        except ValueError as error:
            raise StreamBroken(
                f"{self.stream}: the destination returned a position that is none: {error}",
                "Have `position` return `events.position` as it was stored",
            ) from error

    def _begin_copies(self, work: Publication) -> None:
        """Announce copies whose first rows are about to be written, or that have none."""
        if work.first:
            return
        before = work.opened.at.copies
        for name, copy in work.final.copies.items():
            known, table = before.get(name), _table_named(name)
            if known is None or known.snapshot != copy.snapshot:
                try:
                    self.host.caller().call(partial(_begin_copy, table))
                except Raised as error:
                    raise _refused({table: _failed(table, error, "begin_copy")}) from error

    def _write(self, piece: Records, progress: Progress, work: Publication, schemas: Mapping[str, TableSchema]) -> None:
        """Have a piece written. If that raises, look for the table that is to blame: each by itself."""
        events = self._events(piece, progress, schemas)
        is_copy = bool(work.numbered) and work.final.copies != work.opened.at.copies
        try:
            self._delivered(events, progress, rows=is_copy)
        except (Raised, TableError) as error:
            tables = [owner_of(event) for event in events]
            if len(set(tables)) == 1:
                own = error if isinstance(error, TableError) else _failed(tables[0], error, "write_events")
                raise _refused({tables[0]: own}) from error
            if not tables or work.numbered:
                raise DestinationUnreachable(f"{self.stream}: {error}", "It is tried again") from error
            begin = 0
            for stop in [at for at in range(1, len(tables) + 1) if at == len(tables) or tables[at] != tables[at - 1]]:
                part = sliced(piece, begin, stop)
                reached = progress if stop == len(tables) else work.after(part.places[-1].as_py(), 0)
                self._write(part, reached, work, schemas)
                begin = stop

    def _delivered(self, events: Events, progress: Progress, *, rows: bool) -> None:
        def deliver(destination: Destination) -> Delivery | None:
            return destination.write_rows(events) if rows and len(events) else destination.write_events(events)

        said = self.host.caller().call(deliver)
        reach("publish.taken")
        self._accepted |= said is Delivery.ACCEPTED
        self._progress = progress
        if self._own:
            self._stored = events.position
        elif not self._accepted and time.monotonic() - self._recorded_at > RECORD_EVERY:
            self._record()

    def _move(self, progress: Progress) -> None:
        """Move the place alone."""
        if self._own:
            try:
                self._delivered(self._events(None, progress, {}), progress, rows=False)
            except Raised as error:
                raise DestinationUnreachable(f"{self.stream}: {error}", "It is tried again") from error
        self._progress = progress

    def _settle(self) -> None:
        """Return when everything is durable, and the place with it."""
        if self._accepted:
            self._call(lambda destination: destination.flush())
            self._accepted = False
        if not self._own:
            self._record()

    def _record(self) -> None:
        if self._chain is None:
            raise ValueError("the shard is not open")
        self._chain.append({"progress": self._opened.to_text()})
        self._recorded_at = time.monotonic()

    def _events(self, piece: Records | None, progress: Progress, schemas: Mapping[str, TableSchema]) -> Events:
        texts = [] if piece is None else piece.values.to_pylist()
        places = [] if piece is None else piece.places.to_pylist()
        position = f"{self.history} {progress.to_text()}" if self._own else ""
        return Events(texts, places, schemas, stream=self.stream, position=position, previous=self._stored)


def _pieces(spool: Spool, most: int, work: Publication, end: Progress) -> Iterator[tuple[Records, Progress]]:
    """Yield the records that are not out yet, each piece with the progress behind it."""
    sent = work.first
    for piece in spool.pieces(most, BYTES_AT_ONCE, work):
        sent += len(piece)
        yield piece, end if sent == spool.records else work.after(piece.places[-1].as_py(), sent)


def _begin_copy(table: TableId, destination: Destination) -> None:
    destination.begin_copy(table)


def _refused(errors: Mapping[TableId, TableError]) -> TablesRefused:
    return TablesRefused({(table.schema, table.name): error for table, error in errors.items()})


def _failed(table: TableId, error: Raised, method: str) -> TableFailed:
    failed = TableFailed(f"table {table}: {method} raised {error}", FIX_IT)
    failed.trace = error.trace
    return failed


def _table_named(name: str) -> TableId:
    """Return the table that a shard's place lists under this name."""
    found = _PLACE_NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not the name of a table in a place")
    schema, table = (part.replace('""', '"') for part in found.groups())
    return TableId(schema, table)

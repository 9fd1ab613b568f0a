"""Keep files that live no longer than a job or a copy: raw changes and rows that tasks write for one another.

They are in the log's folder (`scratch/`), which the driver and all executors reach; no reader or writer of the log
looks there.

Nothing in it is durable, and nobody needs it after the job. A task that runs again writes another file: what a task
gives as its result says which one counts. Whoever makes a Scratch removes it; what a killed driver left goes at the
next start (`remove_leftovers`), when no other job runs on the log.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import fs

from penstock.changelog.log import ChangeLog
from penstock.errors import LogFull, LogUnreachable
from penstock.model.change import RAW_SCHEMA

FOLDER = "scratch"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class Scratch:
    """One job's folder. Picklable. All its methods raise LogUnreachable when the store does not answer."""

    def __init__(self, log: ChangeLog, name: str | None = None) -> None:
        self._log, self._name = log, name or secrets.token_hex(8)

    def __reduce__(self) -> tuple[type[Scratch], tuple[ChangeLog, str]]:
        return Scratch, (self._log, self._name)

    def create(self) -> None:
        with _store_errors(self._log, "making a folder in"):
            self._log.filesystem.create_dir(self._folder, recursive=True)

    @contextmanager
    def writing(self, schema: pa.Schema = RAW_SCHEMA) -> Iterator[tuple[str, Callable[[pa.RecordBatch], None]]]:
        """Give a new file's name, and what appends a batch to it; files are numbered from 0.

        The file is complete once the block is left. LogFull when there is no room.
        """
        name = f"{secrets.token_hex(8)}.arrow"
        with (
            _store_errors(self._log, "writing to"),
            self._log.filesystem.open_output_stream(f"{self._folder}/{name}") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            yield name, writer.write_batch

    def read(self, name: str, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Batches of a complete file, by their numbers."""
        path, log = f"{self._folder}/{name}", self._log
        opened = pa.memory_map if log.local else log.filesystem.open_input_file
        try:
            with _store_errors(log, "reading"), opened(path) as file:
                reader = pa.ipc.open_file(file)
                for number in numbers:
                    yield reader.get_batch(number)
        except pa.ArrowInvalid as error:
            raise _unreachable(log, "reading", error) from error

    def read_all(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield all batches of a complete file."""
        path, log = f"{self._folder}/{name}", self._log
        opened = pa.memory_map if log.local else log.filesystem.open_input_file
        with _store_errors(log, "reading"), opened(path) as file:
            count = pa.ipc.open_file(file).num_record_batches
        yield from self.read(name, range(count))

    def remove_file(self, name: str) -> None:
        with _store_errors(self._log, "removing from"):
            self._log.filesystem.delete_file(f"{self._folder}/{name}")

    def remove(self) -> None:
        with _store_errors(self._log, "removing from"):
            _remove(self._log, self._folder)

    @property
    def _folder(self) -> str:
        return f"{_parent(self._log)}/{self._name}"


def remove_leftovers(log: ChangeLog) -> bool:
    """Remove all scratch of the log, and return whether there was any."""
    with _store_errors(log, "removing from"):
        found = log.filesystem.get_file_info(fs.FileSelector(_parent(log), allow_not_found=True))
        for info in found:
            _remove(log, info.path)
    return bool(found)


def _parent(log: ChangeLog) -> str:
    return f"{log.folder}/{FOLDER}"


def _remove(log: ChangeLog, path: str) -> None:
    if log.filesystem.get_file_info(path).type == fs.FileType.Directory:
        log.filesystem.delete_dir(path)


@contextmanager
def _store_errors(log: ChangeLog, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise LogFull(
                f"no room beside the change log {log.uri} for sharing out a huge transaction: {_first_line(error)}",
                "Free space there, as much as the transaction has; it is tried again",
            ) from error
        raise _unreachable(log, doing, error) from error


def _unreachable(log: ChangeLog, doing: str, error: Exception) -> LogUnreachable:
    return LogUnreachable(
        f"{doing} {FOLDER} of the change log {log.uri} failed: {_first_line(error)}",
        "Check log.uri and that its store can be reached and written, by executors too",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

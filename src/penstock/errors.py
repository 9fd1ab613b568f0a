"""Everything that can go wrong, in one tree. Each error says what, where and what to do; it survives pickling.

PenstockError                    exit   retry
 ├─ UsageError                   2      never    a command's arguments make no sense
 ├─ ConfigError                  2      never    the pipeline file is wrong: file, line or key path, value
 ├─ CheckFailed                  1      never    `check` found something that must be fixed
 ├─ LockedError                  1      never    the pipeline is running already
 ├─ SourceError
 │   ├─ SourceUnreachable        3      backoff  no connection, wrong password, TLS refused
 │   │   └─ SourceLocked         3      backoff  somebody holds a lock on a table that has to be read
 │   ├─ SourceMisconfigured      1      never    wal_level, rights, publication: with the statement that fixes it
 │   ├─ SlotBusy                 3      backoff  another process reads the slot
 │   ├─ StreamOutOfStep          3      backoff  a transaction in the stream lacks its beginning or end: read again
 │   ├─ SnapshotBlocked          3      backoff  old or prepared transactions keep a snapshot from being taken
 │   └─ GapError                 1      manual   changes are missing between log and slot; never passed over
 ├─ LogError
 │   ├─ LogDamaged               1      manual   a segment is missing or its checksum does not hold: by name
 │   ├─ LogFull                  3      backoff  log.max_bytes or the disk is used up
 │   └─ LogUnreachable           3      backoff  the log's store does not answer
 ├─ TableError                                   makes one table Errored and no other
 │   ├─ ValueDoesNotFit          1      manual   a value that the target type cannot hold
 │   ├─ ColumnNotCarried         1      manual   a column's name is taken, or its type does not allow what was chosen
 │   ├─ KeyRequired              1      manual   update or delete on a table without a key
 │   ├─ NotPublished             1      when published  its changes are not, or not all, sent; copied once they are
 │   ├─ MessageNotDecodable      1      manual   bytes that are no pgoutput message
 │   ├─ RowIncomplete            1      manual   Postgres did not send all of a row that a row filter lets in
 │   ├─ RangeVoid                1      at once  a table was rewritten while it was copied: its copy starts again
 │   ├─ CopyNeeded               1      at once  the table's rows cannot be brought up to date: it is copied again
 │   │   └─ TableDropped         1      at once  somebody dropped it at the destination
 │   ├─ LineageLost              1      manual   somebody rolled back or replaced the table at the destination
 │   ├─ SchemaChanged            1      manual   the table's structure differs from the destination's
 │   │   └─ OtherLayout          1      manual   the destination's table was made for another mode
 │   ├─ RowsMissing              1      at once  the destination lacks a row that the source removed: copied again
 │   ├─ RuleChanged              1      manual   the file says otherwise, and a new copy would lose rows
 │   ├─ ColumnsRequired          1      manual   a table without columns; copied as soon as it has one
 │   ├─ FilesLost                1      manual   a file of the table is missing or cannot be read; the store answers
 │   ├─ TableFailed              1      manual   an exception that nobody expected, met on this table
 │   └─ PositionLost             1      manual   the table's position cannot be told, or is behind the log
 │       └─ LogPassed            1      manual   the log no longer holds what the table needs; a clone is copied again
 ├─ DestinationError
 │   ├─ DestinationUnreachable   3      backoff  catalog or storage does not answer
 │   │   └─ FileUnreadable       3      backoff  one file: the destination finds out whether it is FilesLost
 │   ├─ StaleBase                1      at once  somebody else committed: read the table again and redo
 │   ├─ CommitUnknown            1      at once  the outcome of a commit is not known: read the position, then decide
 │   ├─ Overtaken                1      at once  another writer moved a stream's shard: open it again
 │   └─ StreamBroken             1      manual   a stream has a hole, or was made for another source or layout
 ├─ StateError                   3      backoff  the state store does not answer
 ├─ TaskFailed                   1      never    an unexpected exception in a task; becomes its table's TableFailed
 ├─ NoAnswer                     3      never    the run that was asked for something does not answer, or has ended
 └─ EnvironmentMissing           3      never    Java, a jar or Spark's cluster is not there
"""

from __future__ import annotations

from typing import ClassVar, Literal

Retry = Literal["never", "backoff", "at once", "manual", "when published"]


class PenstockError(Exception):
    """`what` (with where in it) and `solution`: both are shown to the user as one line."""

    exit_code: ClassVar[int] = 1
    retry: ClassVar[Retry] = "never"

    def __init__(self, what: str, solution: str = "") -> None:
        super().__init__(what, solution)
        self.what = what
        self.solution = solution

    def __str__(self) -> str:
        return f"{self.what}. {self.solution}" if self.solution else self.what


class UsageError(PenstockError):
    exit_code = 2


class ConfigError(PenstockError):
    exit_code = 2


class CheckFailed(PenstockError):
    pass


class LockedError(PenstockError):
    pass


class SourceError(PenstockError):
    pass


class SourceUnreachable(SourceError):
    exit_code = 3
    retry = "backoff"


class SourceLocked(SourceUnreachable):
    pass


class SourceMisconfigured(SourceError):
    pass


class SlotBusy(SourceError):
    exit_code = 3
    retry = "backoff"


class StreamOutOfStep(SourceError):
    exit_code = 3
    retry = "backoff"


class SnapshotBlocked(SourceError):
    exit_code = 3
    retry = "backoff"


class GapError(SourceError):
    retry = "manual"


class LogError(PenstockError):
    pass


class LogDamaged(LogError):
    retry = "manual"


class LogFormatUnknown(LogError):
    """Another version of penstock wrote the change log, in a format that this one does not read."""


class LogFull(LogError):
    exit_code = 3
    retry = "backoff"


class LogUnreachable(LogError):
    exit_code = 3
    retry = "backoff"


class TableError(PenstockError):
    retry: ClassVar[Retry] = "manual"


class ValueDoesNotFit(TableError):
    pass


class ColumnNotCarried(TableError):
    pass


class KeyRequired(TableError):
    pass


class NotPublished(TableError):
    retry = "when published"


class MessageNotDecodable(TableError):
    pass


class RowIncomplete(TableError):
    pass


class RangeVoid(TableError):
    retry = "at once"


class CopyNeeded(TableError):
    retry = "at once"


class LineageLost(TableError):
    pass


class SchemaChanged(TableError):
    pass


class RowsMissing(TableError):
    """`rows`: how many instances are missing."""

    retry = "at once"
    rows: int = 0

    def counting(self, rows: int) -> RowsMissing:
        self.rows = rows
        return self


class OtherLayout(SchemaChanged):
    pass


class RuleChanged(TableError):
    pass


class ColumnsRequired(TableError):
    pass


class FilesLost(TableError):
    pass


class TableDropped(CopyNeeded):
    pass


class TableFailed(TableError):
    """`trace` is the traceback of the exception, for the log."""

    trace: str = ""


class PositionLost(TableError):
    pass


class LogPassed(PositionLost):
    pass


class DestinationError(PenstockError):
    pass


class DestinationUnreachable(DestinationError):
    exit_code = 3
    retry = "backoff"


class FileUnreadable(DestinationUnreachable):
    """`location` is the file, and `missing` says that the store has no such file."""

    location: str = ""
    missing: bool = False


class StaleBase(DestinationError):
    retry = "at once"


class CommitUnknown(DestinationError):
    retry = "at once"


class Overtaken(DestinationError):
    retry = "at once"


class StreamBroken(DestinationError):
    retry = "manual"


class StateError(PenstockError):
    exit_code = 3
    retry = "backoff"


class TaskFailed(PenstockError):
    """`trace` is the traceback of the exception where the task ran."""

    trace: str = ""


class NoAnswer(PenstockError):
    exit_code = 3


class EnvironmentMissing(PenstockError):
    exit_code = 3

"""Define every error: what, where and what to do, with a stable code, an exit code and a retry policy.

Errors survive pickling, so one raised on an executor reaches the driver whole.

PenstockError                 code                    exit  retry
 ├─ UsageError                usage                   2     never     the command's arguments are invalid
 ├─ ConfigError               config                  2     never     the pipeline file is invalid: file, line, key path
 ├─ CheckFailed               check                   1     never     `check` found something that must be fixed
 ├─ LockedError               already-running         1     never     the pipeline is already running
 ├─ SourceError               source
 │   ├─ SourceUnreachable     source-unreachable      3     backoff   no connection, wrong password, TLS refused
 │   │   └─ SourceLocked      source-locked           3     backoff   another session locks a table that must be read
 │   ├─ SourceMisconfigured   source-setup            1     never     wal_level, rights, publication: with the fix
 │   ├─ SourceGivenUp         source-given-up         3     never     unreachable for as often as source.retries says
 │   ├─ SlotBusy              slot-busy               3     backoff   another process reads the slot
 │   ├─ StreamOutOfStep       stream-out-of-step      3     backoff   a transaction lacks its beginning or end: reread
 │   ├─ SnapshotBlocked       snapshot-blocked        3     backoff   old or prepared transactions delay a snapshot
 │   └─ GapError              gap                     1     manual    changes are missing between log and slot
 ├─ LogError                  log
 │   ├─ LogDamaged            log-damaged             1     manual    a segment is missing or fails its checksum
 │   ├─ LogFormatUnknown      log-format              1     never     another version of penstock wrote the log
 │   ├─ LogFull               log-full                3     backoff   log.max_bytes or the disk is used up
 │   └─ LogUnreachable        log-unreachable         3     backoff   the log's storage does not answer
 ├─ TableError                table                                   puts one table into Errored, and no other
 │   ├─ ValueDoesNotFit       value                   1     manual    the target type cannot hold a value
 │   ├─ RowRefused            row-refused             1     manual    a constraint or type at the destination refuses it
 │   ├─ ColumnNotCarried      column                  1     manual    column name taken, or type does not allow the rule
 │   ├─ KeyRequired           no-key                  1     manual    update or delete on a table without a key
 │   ├─ NotPublished          not-published           1     published changes are not all sent; copied once they are
 │   ├─ MessageNotDecodable   undecodable             1     manual    bytes that are no message of the source's protocol
 │   ├─ RowIncomplete         row-incomplete          1     manual    a row entered a row filter without all its values
 │   ├─ RangeVoid             copy-void               1     at once   table rewritten during its copy, which restarts
 │   ├─ CopyNeeded            copy-needed             1     at once   rows cannot be brought up to date: copied again
 │   │   └─ TableDropped      table-dropped           1     at once   somebody dropped it at the destination
 │   ├─ LineageLost           lineage-lost            1     manual    rolled back or replaced at the destination
 │   ├─ SchemaChanged         schema                  1     manual    structure differs from the destination's
 │   │   └─ OtherLayout       other-mode              1     manual    the destination's table has another mode
 │   ├─ RowsMissing           rows-missing            1     at once   the destination lacks a row the source removed
 │   ├─ RuleChanged           rule-changed            1     manual    the rule changed, and a new copy would lose rows
 │   ├─ ColumnsRequired       no-columns              1     manual    no columns; copied as soon as there is one
 │   ├─ TableLocked           table-locked            1     backoff   another session locks it at the destination
 │   ├─ FilesLost             files-lost              1     manual    a file is missing or damaged; the storage answers
 │   ├─ SchemaRefused         schema-refused          1     manual    the schema registry does not take a structure
 │   ├─ TableFailed           table-failed            1     manual    an unexpected exception on this table
 │   ├─ EventsMissing         events-missing          1     manual    events of a table may be missing from a stream
 │   ├─ EventRefused          event-refused           1     manual    one event cannot be published to a stream
 │   ├─ ProcessorFailed       processor               1     manual    a processor stops its table, or cannot run at all
 │   ├─ DeadLettersFull       dead-letters-full       1     manual    no room for another dead letter of this table
 │   └─ PositionLost          position-lost           1     manual    position unknown, or behind the log
 │       └─ LogPassed         log-passed              1     manual    the log no longer reaches back; a clone is copied
 ├─ DestinationError          destination
 │   ├─ DestinationUnreachabledestination-unreachable 3     backoff   catalog or storage does not answer
 │   │   └─ FileUnreadable    file-unreadable         3     backoff   one file: the destination decides on FilesLost
 │   ├─ StaleBase             stale-base              1     at once   another writer committed: reread and redo
 │   ├─ CommitUnknown         commit-unknown          1     at once   outcome of a commit unknown: read the position
 │   ├─ Overtaken             overtaken               1     at once   another writer moved a stream's shard: reopen it
 │   ├─ StreamBroken          stream-broken           1     manual    a stream has a hole, or was made for other data
 │   ├─ UnknownTopics         unknown-topics          1     at once   the layout lacks topics: the driver looks them up
 │   ├─ TopicsRefused         topics-refused          1     manual    topics cannot be created: their tables are Errored
 │   ├─ RecordRefused         record-refused          1     at once   single records are refused: they are taken out
 │   ├─ TablesRefused         tables-refused          1     at once   tables are refused: they stand behind, Errored
 │   └─ StreamHeld            stream-held             3     backoff   no room for another dead letter: the stream waits
 ├─ StateError                state                   3     backoff   the state store does not answer
 │   └─ LeaseLost             lease-lost              1     never     another run has taken the pipeline over
 ├─ TaskFailed                task-failed             1     never     unexpected exception in a task; see TableFailed
 ├─ NoAnswer                  no-answer               3     never     the run does not answer, or has ended
 └─ EnvironmentMissing        environment             3     never     Java, a jar or the Spark cluster is missing
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import ClassVar


class Retry(StrEnum):
    """Who tries again what failed.

    Nobody, penstock by itself (later, or at once), an operator, or penstock as soon as the source publishes the table.
    """

    NEVER = "never"
    BACKOFF = "backoff"
    AT_ONCE = "at once"
    MANUAL = "manual"
    WHEN_PUBLISHED = "when published"

    @property
    def is_automatic(self) -> bool:
        """Whether penstock tries again by itself, with nothing changed by anybody."""
        return self in (Retry.BACKOFF, Retry.AT_ONCE)


class PenstockError(Exception):
    """Carry `what` went wrong (and where) and the `solution`; the command line prints both in one line, after `code`.

    Every class has a code of its own, which never changes: docs/operations.md is indexed by it.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(self, what: str, solution: str = "") -> None:
        super().__init__(what, solution)
        self.what = what
        self.solution = solution

    def __str__(self) -> str:
        return f"{self.what}. {self.solution}" if self.solution else self.what


class UsageError(PenstockError):
    code = "usage"
    exit_code = 2


class ConfigError(PenstockError):
    code = "config"
    exit_code = 2


class CheckFailed(PenstockError):
    code = "check"


class LockedError(PenstockError):
    code = "already-running"


class SourceError(PenstockError):
    code = "source"


class SourceUnreachable(SourceError):
    code = "source-unreachable"
    exit_code = 3
    retry = Retry.BACKOFF


class SourceLocked(SourceUnreachable):
    code = "source-locked"


class SourceGivenUp(SourceError):
    """It did not answer as often as `source.retries` says."""

    code = "source-given-up"
    exit_code = 3


class SourceMisconfigured(SourceError):
    code = "source-setup"


class SlotBusy(SourceError):
    code = "slot-busy"
    exit_code = 3
    retry = Retry.BACKOFF


class StreamOutOfStep(SourceError):
    code = "stream-out-of-step"
    exit_code = 3
    retry = Retry.BACKOFF


class SnapshotBlocked(SourceError):
    code = "snapshot-blocked"
    exit_code = 3
    retry = Retry.BACKOFF


class GapError(SourceError):
    code = "gap"
    retry = Retry.MANUAL


class LogError(PenstockError):
    code = "log"


class LogDamaged(LogError):
    code = "log-damaged"
    retry = Retry.MANUAL


class LogFormatUnknown(LogError):
    """Another version of penstock wrote the change log, in a format that this one does not read."""

    code = "log-format"


class LogFull(LogError):
    code = "log-full"
    exit_code = 3
    retry = Retry.BACKOFF


class LogUnreachable(LogError):
    code = "log-unreachable"
    exit_code = 3
    retry = Retry.BACKOFF


class TableError(PenstockError):
    code = "table"
    retry: ClassVar[Retry] = Retry.MANUAL


class ValueDoesNotFit(TableError):
    code = "value"


class RowRefused(TableError):
    """A constraint or a type of the destination's table does not let a row in."""

    code = "row-refused"


class ColumnNotCarried(TableError):
    code = "column"


class KeyRequired(TableError):
    code = "no-key"


class NotPublished(TableError):
    code = "not-published"
    retry = Retry.WHEN_PUBLISHED


class MessageNotDecodable(TableError):
    code = "undecodable"


class RowIncomplete(TableError):
    code = "row-incomplete"


class RangeVoid(TableError):
    code = "copy-void"
    retry = Retry.AT_ONCE


class CopyNeeded(TableError):
    code = "copy-needed"
    retry = Retry.AT_ONCE


class LineageLost(TableError):
    code = "lineage-lost"


class SchemaChanged(TableError):
    code = "schema"


class RowsMissing(TableError):
    """`rows`: how many instances are missing."""

    code = "rows-missing"
    retry = Retry.AT_ONCE
    rows: int = 0

    def counting(self, rows: int) -> RowsMissing:
        self.rows = rows
        return self


class OtherLayout(SchemaChanged):
    code = "other-mode"


class RuleChanged(TableError):
    code = "rule-changed"


class ColumnsRequired(TableError):
    code = "no-columns"


class TableLocked(TableError):
    """Another session locks a table of the destination. It is tried again, and the others go on."""

    code = "table-locked"
    retry = Retry.BACKOFF


class FilesLost(TableError):
    code = "files-lost"


class SchemaRefused(TableError):
    """A schema registry refuses the schema of a table's events."""

    code = "schema-refused"


class TableDropped(CopyNeeded):
    code = "table-dropped"


class TableFailed(TableError):
    """`trace` is the traceback of the exception, for the log."""

    code = "table-failed"
    trace: str = ""


class EventsMissing(TableError):
    code = "events-missing"


class EventRefused(TableError):
    code = "event-refused"


class ProcessorFailed(TableError):
    code = "processor"


class DeadLettersFull(TableError):
    code = "dead-letters-full"


class PositionLost(TableError):
    code = "position-lost"


class LogPassed(PositionLost):
    code = "log-passed"


class DestinationError(PenstockError):
    code = "destination"


class DestinationUnreachable(DestinationError):
    code = "destination-unreachable"
    exit_code = 3
    retry = Retry.BACKOFF


class FileUnreadable(DestinationUnreachable):
    """`location` is the file, and `missing` says that the store has no such file."""

    code = "file-unreadable"
    location: str = ""
    missing: bool = False


class StaleBase(DestinationError):
    code = "stale-base"
    retry = Retry.AT_ONCE


class CommitUnknown(DestinationError):
    code = "commit-unknown"
    retry = Retry.AT_ONCE


class Overtaken(DestinationError):
    code = "overtaken"
    retry = Retry.AT_ONCE


class StreamBroken(DestinationError):
    code = "stream-broken"
    retry = Retry.MANUAL


class UnknownTopics(DestinationError):
    """`names` are the topics."""

    code = "unknown-topics"
    retry = Retry.AT_ONCE

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(f"topics not looked up yet: {', '.join(sorted(names))}")
        self.names = frozenset(names)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.names,)


class TopicsRefused(DestinationError):
    """`reasons` says of each topic why it cannot be had."""

    code = "topics-refused"
    retry = Retry.MANUAL

    def __init__(self, reasons: Mapping[str, str], solution: str = "") -> None:
        super().__init__("; ".join(f"topic {name}: {reason}" for name, reason in reasons.items()), solution)
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.reasons, self.solution)


class RecordRefused(DestinationError):
    """`reasons` says of each refused record, by its place, why. `reason_code` is a short word for all of them."""

    code = "record-refused"
    retry = Retry.AT_ONCE

    def __init__(self, reasons: Mapping[str, str], reason_code: str = "refused") -> None:
        super().__init__(f"{len(reasons)} records were refused: {next(iter(reasons.values()), '')}")
        self.reasons, self.reason_code = dict(reasons), reason_code

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.reasons, self.reason_code)


class TablesRefused(DestinationError):
    """`errors` has each refused table's own error, by schema and name."""

    code = "tables-refused"
    retry = Retry.AT_ONCE

    def __init__(self, errors: Mapping[tuple[str, str], TableError]) -> None:
        super().__init__("; ".join(error.what for error in errors.values()))
        self.errors = dict(errors)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.errors,)


class StreamHeld(DestinationError):
    code = "stream-held"
    exit_code = 3
    retry = Retry.BACKOFF


class StateError(PenstockError):
    code = "state"
    exit_code = 3
    retry = Retry.BACKOFF


class LeaseLost(StateError):
    """Another run has taken the pipeline over; this one may write nothing any more."""

    code = "lease-lost"
    exit_code = 1
    retry = Retry.NEVER


class TaskFailed(PenstockError):
    """`trace` is the traceback of the exception where the task ran."""

    code = "task-failed"
    trace: str = ""


class NoAnswer(PenstockError):
    code = "no-answer"
    exit_code = 3


class EnvironmentMissing(PenstockError):
    code = "environment"
    exit_code = 3

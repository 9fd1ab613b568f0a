"""The boundary around one table's work: decide whether a failure is that table's own, or concerns all of them.

Every step that plans, writes, commits or maintains one table ends here when it fails. An exception that nobody expected
is the table's: it becomes Errored, with the traceback in the log, and the others go on. A file that cannot be read is
the table's if the store answers otherwise, which the destination finds out. What takes away what all tables share (the
destination, the change log, the state store, Java) is raised again. Imported by executors too, so it imports little.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from penstock.destinations.contract import TableDestination
from penstock.errors import (
    EnvironmentMissing,
    FileUnreadable,
    PenstockError,
    TableError,
    TableFailed,
    TaskFailed,
)
from penstock.java_error import java_has_ended
from penstock.model.feed import Feed
from penstock.model.table import TableId

REPORT = "This is a bug: please report it with the traceback in the log; then `penstock retry`"
JAVA_ENDED = "Spark's Java process has ended"
START_AGAIN = "Start penstock again; spark.log in the pipeline's folder may say why"


class Contained:
    """The boundary as a block: what goes wrong in it is given to `handle`, which raises what is not the table's."""

    def __init__(self, handle: Callable[[Exception], None]) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._handle(error)
        return True


def unexpected(table: TableId, error: Exception, doing: str = "its changes were applied") -> TableFailed:
    """Give an exception that nobody expected as the table's error. `doing` completes "while …"."""
    failed = TableFailed(
        f"table {table}: unexpected {type(error).__name__} while {doing}: {' '.join(str(error).split())[:300]}", REPORT
    )
    failed.trace = "".join(traceback.format_exception(error))
    return failed


def of_table(destination: TableDestination, source: str, feed: Feed, doing: str, error: Exception) -> TableError:
    """Give the error as the table's own, or raise what concerns more than this table."""
    told: Exception = error
    if isinstance(error, FileUnreadable):
        told = destination.diagnose(feed.target, source, error)
    if isinstance(told, TableError):
        return told
    if isinstance(told, TaskFailed):
        failed = TableFailed(f"table {feed.name}: {told.what}, while {doing}", REPORT)
        failed.trace = told.trace
        return failed
    if told is error and isinstance(told, PenstockError):
        raise told
    if isinstance(told, PenstockError):
        raise told from error
    if java_has_ended(told):
        raise EnvironmentMissing(JAVA_ENDED, START_AGAIN) from told
    return unexpected(feed.name, told, doing)

"""The child's side of `python.py`: import a function, then answer call after call until the parent is gone.

Started as `python -m penstock.processors.worker SETTINGS`. What the function prints goes to stderr: stdout is the pipe
to the parent. The limit on memory holds for what it needs beyond the libraries that are loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from penstock.processors.batch import EventBatch, Route, StepFailed, batch_of, events_of
from penstock.processors.exchange import FAILED, FRAME, HEADERS_TYPE, READY, batch_of_table, table_of, written

LONGEST_REASON = 500
PR_SET_PDEATHSIG = 1


def main(settings: Mapping[str, Any]) -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _die_with_parent()
    pa.set_cpu_count(1)
    try:
        function = _found(settings["function"])
    except Exception as error:  # noqa: BLE001 - whatever the user's module raises is the answer
        _answer(answers, FAILED, _failed("import", error))
        return
    _limit(settings["memory"])
    _answer(answers, READY, b"")
    with os.fdopen(0, "rb") as calls:
        while header := calls.read(FRAME.size):
            _, length = FRAME.unpack(header)
            kind, answer = _called(function, calls.read(length), settings)
            _answer(answers, kind, answer)


def _called(function: Callable[[Any], Any], given: bytes, settings: Mapping[str, Any]) -> tuple[bytes, bytes]:
    try:
        table = pa.ipc.open_stream(given).read_all()
        return READY, written(_by_rows(function, table, settings) if settings["rows"] else _by_columns(function, table))
    except StepFailed as error:
        return FAILED, json.dumps({"code": error.code, "reason": error.reason}).encode()
    except MemoryError:
        return FAILED, json.dumps(
            {"code": "memory", "reason": f"it needs more than {settings['memory']} bytes"}
        ).encode()
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises is the answer
        return FAILED, _failed("raised", error)


def _by_columns(function: Callable[[pa.Table], Any], table: pa.Table) -> pa.Table:
    made = function(table)
    if isinstance(made, pa.RecordBatch):
        made = pa.Table.from_batches([made])
    if not isinstance(made, pa.Table):
        raise StepFailed("nonsense", f"it returned {type(made).__name__}, not a pyarrow table")
    return made


def _by_rows(function: Callable[[dict[str, Any]], Any], table: pa.Table, settings: Mapping[str, Any]) -> pa.Table:
    """Call the function for each event. It returns an event, None (leave it out), or a list of events."""
    batch = batch_of_table(table, ())
    made: list[tuple[int, Mapping[str, Any]]] = []
    for row, event in enumerate(events_of(batch)):
        answer = function(event)
        for one in answer if isinstance(answer, list | tuple) else [] if answer is None else [answer]:
            made.append((row, one))
    answers = batch_of(batch, made, settings["adds"])
    given = table["event"].combine_chunks().take(pa.array(answers.origin))
    columns = table_of(answers).select(["op", "before", "after"]).append_column("event", given)
    return columns if answers.route is None else _routed(columns, answers, answers.route)


def _routed(columns: pa.Table, batch: EventBatch, route: Route) -> pa.Table:
    headers = [
        [(name, values[row].as_py()) for name, values in route.headers.items() if values[row].is_valid]
        for row in range(len(batch))
    ]
    columns = columns.append_column("topic", route.topic).append_column("key", route.key)
    return columns.append_column("headers", pa.array(headers, HEADERS_TYPE))


def _found(name: str) -> Callable[[Any], Any]:
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute, None)
    if function is None:
        raise StepFailed("import", f"module {module} has no {attribute}")
    if not callable(function) or inspect.isclass(function):
        raise StepFailed("import", f"{name} is no function")
    found: Callable[[Any], Any] = function
    return found


def _failed(code: str, error: Exception) -> bytes:
    said = " ".join(str(error).split()) or "no reason given"
    if isinstance(error, StepFailed):
        code, reason = error.code, said
    else:
        reason = f"{type(error).__name__}: {said}"
    return json.dumps({"code": code, "reason": reason[:LONGEST_REASON]}).encode()


def _answer(pipe: IO[bytes], kind: bytes, content: bytes) -> None:
    pipe.write(FRAME.pack(kind, len(content)))
    pipe.write(content)
    pipe.flush()


def _limit(memory: int) -> None:
    """Limit the address space to what it is now and `memory` more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _die_with_parent() -> None:
    """Have the kernel end this process with its parent, also while the function runs for ever."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):  # not on Linux: then it ends when its pipe does
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

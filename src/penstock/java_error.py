"""What a Java exception says, as one line for people: its own words and those of the cause at the bottom.

Spark puts whole traces into its messages: of an error on an executor the line that names it is what counts, of any
other what stands before the trace. Knows py4j and nobody else. `destinations/iceberg/java`,
`runtime/spark/runner` and `control` turn the line into errors of ours.
"""

from __future__ import annotations

import re
from typing import Protocol

from py4j.protocol import Py4JError, Py4JJavaError

LONGEST = 300
LONGEST_OF_TWO = 150  # of the outer one; what is at the bottom says more
DEEPEST = 20
TRACEBACK = "Traceback (most recent call last):"
TRACE = re.compile(r"at [\w.$/]+\(|\.\.\. \d+ more|Driver stacktrace:|Caused by: |== |JVM stacktrace")
NAMED_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")


def java_has_ended(error: BaseException) -> bool:
    """Whether a call failed because the Java process is gone, and not because Java threw something."""
    return isinstance(error, Py4JError | ConnectionError) and not isinstance(error, Py4JJavaError)


class JavaClass(Protocol):
    def getSimpleName(self) -> str: ...


class JavaException(Protocol):
    """A java.lang.Throwable."""

    def getMessage(self) -> str | None: ...

    def getCause(self) -> JavaException | None: ...

    def getClass(self) -> JavaClass: ...


def java_reason(exception: JavaException) -> str:
    """Return one line of at most LONGEST characters, and never empty."""
    said, at_the_bottom = _said(exception), _said(java_causes(exception)[-1])
    if at_the_bottom in said:
        return _cut(said, LONGEST)
    if said in at_the_bottom:
        return _cut(at_the_bottom, LONGEST)
    outer = _cut(said, max(LONGEST_OF_TWO, LONGEST - len(at_the_bottom) - 2))
    return _cut(f"{outer}: {at_the_bottom}", LONGEST)


def java_causes(exception: JavaException) -> list[JavaException]:
    """Return the exception, its cause, the cause of that and so on."""
    chain = [exception]
    while len(chain) <= DEEPEST:
        cause = chain[-1].getCause()
        if cause is None:
            break
        chain.append(cause)
    return chain


def _said(exception: JavaException) -> str:
    lines = [line.strip() for line in (exception.getMessage() or "").splitlines()]
    if any(line.endswith(TRACEBACK) for line in lines):
        named = [line for line in lines if NAMED_ERROR.match(line)]
        if named:
            return named[-1]
    before_trace = []
    for line in lines:
        if TRACE.match(line):
            break
        before_trace.append(line)
    return " ".join(" ".join(before_trace).split()) or exception.getClass().getSimpleName()


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 2]} …"

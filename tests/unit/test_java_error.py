"""What a Java exception says as one line: messages are as Spark, Iceberg and Java's own classes write them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.java_error import LONGEST, java_reason


@dataclass(frozen=True)
class ClassTwin:
    name: str

    def getSimpleName(self) -> str:
        return self.name


@dataclass(frozen=True)
class Thrown:
    """As py4j gives a java.lang.Throwable."""

    message: str | None
    cause: Thrown | None = None
    name: str = "RuntimeIOException"

    def getMessage(self) -> str | None:
        return self.message

    def getCause(self) -> Thrown | None:
        return self.cause

    def getClass(self) -> ClassTwin:
        return ClassTwin(self.name)


PYTHON_FAILURE = """Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times, most recent failure: Lost \
task 0.3 in stage 2.0 (TID 9) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException: Traceback (most \
recent call last):
  File "/opt/spark/worker.py", line 1234, in main
    process()
  File "/opt/app/task.py", line 3, in work
    raise ValueError("a\\nb")
ValueError: no such thing

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\t... 1 more

Driver stacktrace:"""


def test_a_message_alone() -> None:
    assert java_reason(Thrown("Cannot commit")) == "Cannot commit"


def test_outermost_and_innermost() -> None:
    root = Thrown("No space left on device")
    assert java_reason(Thrown("Failed to write", Thrown("in between", root))) == (
        "Failed to write: No space left on device"
    )


def test_nothing_is_said_twice() -> None:
    root = Thrown("File /a does not exist")
    assert java_reason(Thrown("java.io.IOException: File /a does not exist", root)) == (
        "java.io.IOException: File /a does not exist"
    )
    assert java_reason(Thrown("File", root)) == "File /a does not exist"


def test_an_exception_without_words_is_its_name() -> None:
    assert java_reason(Thrown(None, name="NullPointerException")) == "NullPointerException"
    assert java_reason(Thrown("\n ", name="NullPointerException")) == "NullPointerException"
    assert java_reason(Thrown("Planning failed", Thrown(None, name="StackOverflowError"))) == (
        "Planning failed: StackOverflowError"
    )


def test_an_error_of_python_on_an_executor() -> None:
    assert java_reason(Thrown(PYTHON_FAILURE)) == "ValueError: no such thing"
    assert java_reason(Thrown(PYTHON_FAILURE, Thrown(PYTHON_FAILURE))) == "ValueError: no such thing"


def test_an_executor_that_was_lost() -> None:
    said = (
        "Job aborted due to stage failure: ExecutorLostFailure (executor 3 exited) Reason: Command exited with code 137"
    )
    assert java_reason(Thrown(f"{said}\nDriver stacktrace:")) == said


def test_a_trace_in_the_message_is_left_out() -> None:
    said = "Cannot call methods on a stopped SparkContext."
    trace = "\norg.apache.spark.api.java.JavaSparkContext.<init>(JavaSparkContext.scala:59)"
    assert java_reason(Thrown(f"{said}\n\tat org.apache.spark.Some$Thing.call(Some.scala:1){trace}")) == said


def test_several_lines_become_one() -> None:
    assert java_reason(Thrown("Cannot commit:\n  requirement failed:\n\n  branch main has changed")) == (
        "Cannot commit: requirement failed: branch main has changed"
    )


def test_long_words_leave_room_for_the_cause() -> None:
    told = java_reason(Thrown("x" * 1000, Thrown("Connection refused")))
    assert told.endswith("x …: Connection refused")
    assert len(told) == LONGEST
    assert len(java_reason(Thrown("x" * 1000))) == LONGEST
    assert len(java_reason(Thrown("x" * 1000, Thrown("y" * 1000)))) == LONGEST

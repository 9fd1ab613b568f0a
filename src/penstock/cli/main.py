"""Register penstock's commands, and turn every error into one line and an exit code.

Each command is a plain function in a file beside this one. COMMANDS names them; only the module of the command that
is run gets imported, so that `penstock --help` and `penstock status` do not wait for Spark.

Exit codes: 0 done, 1 found something wrong, 2 bad usage or config, 3 could not reach what it needs, 130 interrupted.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import select
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from penstock.control.text.commands import with_file
from penstock.control.text.secrets import scrub
from penstock.errors import PenstockError, UsageError

UNEXPECTED = 1
UNEXPECTED_CODE = "unexpected"
BAD_USAGE = 2
INTERRUPTED = 130
COMPLETING = "_PENSTOCK_COMPLETE"  # what the script of `penstock completion` sets
LONGEST_UNEXPECTED = 400


@dataclass(frozen=True)
class Command:
    """`words` is what the user types; `function` is the name to find in `module`."""

    words: tuple[str, ...]
    module: str
    function: str
    summary: str

    def load(self) -> Callable[..., Any]:
        loaded: Callable[..., Any] = getattr(importlib.import_module(self.module), self.function)
        return loaded


COMMANDS = (
    Command(("demo",), "penstock.cli.demo", "demo", "See it work: a small shop, live traffic, a closing proof."),
    Command(("check",), "penstock.cli.check", "check", "List what to fix in file, source and destination, and how."),
    Command(("init",), "penstock.cli.init", "init", "Write a commented pipeline file from a database's URL."),
    Command(("run",), "penstock.cli.run", "run", "Run the pipeline until it is stopped; --once drains and exits."),
    Command(("capture",), "penstock.cli.run", "capture", "Only fill the change log, without Spark."),
    Command(("status",), "penstock.cli.status", "status", "Show tables, lag, slot, log, and errors with the way out."),
    Command(("tables",), "penstock.cli.tables", "tables", "Show each table's state and how far its copy is."),
    Command(("resync",), "penstock.cli.tables", "resync", "Copy tables again; readers see the old ones until then."),
    Command(("retry",), "penstock.cli.tables", "retry", "Try Errored tables again now."),
    Command(("pause",), "penstock.cli.pauses", "pause", "Let a pipeline, destination or table stand still."),
    Command(("resume",), "penstock.cli.pauses", "resume", "Let what was paused go on."),
    Command(("reset",), "penstock.cli.reset", "reset", "Start over after a gap: slot, log and copies."),
    Command(("drop",), "penstock.cli.tables", "drop", "Drop a destination's table so that it is copied again."),
    Command(("forget",), "penstock.cli.tables", "forget", "Remove the records of a table no longer followed."),
    Command(("schemas",), "penstock.cli.schemas", "schemas", "List the versions of tables' structures."),
    Command(("verify",), "penstock.cli.verify", "verify", "Compare lake and source at one position; --repair."),
    Command(("query",), "penstock.cli.query", "query", "Run Spark SQL over the destination's tables."),
    Command(("events",), "penstock.cli.events", "events", "Print events as JSON lines, in order."),
    Command(("replay",), "penstock.cli.replay", "replay", "Publish a stretch of the change log to a stream again."),
    Command(("quarantine", "list"), "penstock.cli.quarantine", "quarantine_list", "List messages not decodable."),
    Command(("quarantine", "show"), "penstock.cli.quarantine", "quarantine_show", "Show one: position, reason, bytes."),
    Command(("quarantine", "replay"), "penstock.cli.quarantine", "quarantine_replay", "Try them with this decoder."),
    Command(
        ("quarantine", "drop"), "penstock.cli.quarantine", "quarantine_drop", "Give them up; copy their tables again."
    ),
    Command(("dlq", "list"), "penstock.cli.dlq", "dlq_list", "List the dead letters of streams."),
    Command(("dlq", "show"), "penstock.cli.dlq", "dlq_show", "Show one: event, reason, contents."),
    Command(("dlq", "retry"), "penstock.cli.dlq", "dlq_retry", "Send them again."),
    Command(("dlq", "ack"), "penstock.cli.dlq", "dlq_ack", "Remove those that you have dealt with."),
    Command(("dlq", "purge"), "penstock.cli.dlq", "dlq_purge", "Remove all of them, or those of a table."),
    Command(("serve",), "penstock.cli.serve", "serve", "Run pipelines with REST, metrics and a web page."),
    Command(("tokens", "add"), "penstock.cli.serve", "tokens_add", "Make a token for the server, and print it once."),
    Command(("tokens", "list"), "penstock.cli.serve", "tokens_list", "List the server's tokens by name."),
    Command(("tokens", "remove"), "penstock.cli.serve", "tokens_remove", "Remove a token of the server."),
    Command(("wait",), "penstock.cli.wait", "wait", "Wait until what the source has written is delivered."),
    Command(
        ("destinations", "drop"),
        "penstock.cli.destinations",
        "destinations_drop",
        "Remove what is kept of a destination that left the file.",
    ),
    Command(
        ("source", "ddl-trigger", "install"),
        "penstock.cli.ddl_trigger",
        "install",
        "Have the source report altered tables in its stream.",
    ),
    Command(("source", "ddl-trigger", "remove"), "penstock.cli.ddl_trigger", "remove", "Take that trigger away again."),
    Command(("state", "export"), "penstock.cli.state", "state_export", "Print the state, to move it to another store."),
    Command(("state", "import"), "penstock.cli.state", "state_import", "Take over an exported state."),
    Command(("state", "reset"), "penstock.cli.state", "state_reset", "Forget the state; every table is copied again."),
    Command(("slots", "drop"), "penstock.cli.slots", "slots_drop", "Remove the pipeline's replication slot."),
    Command(
        ("import", "kuvasz"),
        "penstock.cli.import_kuvasz",
        "import_kuvasz",
        "Print a pipeline file made from kuvasz-streamer's map.",
    ),
    Command(("completion",), "penstock.cli.completion", "completion", "Print the script for completion in a shell."),
    Command(("jars", "fetch"), "penstock.cli.jars", "jars_fetch", "Fetch what Spark needs before the first run."),
)

GROUPS = {
    "quarantine": "Messages that could not be decoded.",
    "dlq": "Dead letters: events that a stream went on without.",
    "destinations": "The pipeline's destinations.",
    "tokens": "The server's tokens.",
    "slots": "The source's replication slot.",
    "source": "What penstock keeps at the source.",
    "source ddl-trigger": "The optional event trigger that reports altered tables.",
    "state": "What the pipeline remembers about itself.",
    "import": "Pipeline files made from the configuration of other programs.",
    "jars": "The Java libraries that Spark needs.",
}


def build(wanted: str | None) -> typer.Typer:
    """Build the command line. Only the wanted command's module is loaded; the others have their summaries."""
    app = _group("Keep tables and streams equal to a live database, exactly once.")
    app.callback(invoke_without_command=True)(_penstock)
    groups = {name: _group(summary) for name, summary in GROUPS.items()}
    for command in COMMANDS:
        *parents, name = command.words
        function = _letting_errors_out(command.load()) if command.words[0] == wanted else _not_loaded
        holder = groups[" ".join(parents)] if parents else app
        holder.command(name, short_help=command.summary)(function)
    for words, group in groups.items():
        above, _, name = words.rpartition(" ")
        (groups[above] if above else app).add_typer(group, name=name)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Every error ends here, as one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"] or ["--help"]
    wanted = next((word for word in words if not word.startswith("-")), None)
    if COMPLETING in os.environ:  # a shell asks what may come next
        wanted = _being_completed()
    try:
        outcome = build(wanted)(words, prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except _Escaped as escaped:
        return _end(escaped.error, debug, words)
    except SystemExit:  # rich and typer end like this when nobody reads their output any more: nothing is wrong
        return 0
    except BaseException as error:  # noqa: BLE001 - the last line of defence: a user sees one line, never a traceback
        return _end(error, debug, words)
    return outcome if isinstance(outcome, int) else 0


def _being_completed() -> str | None:
    """Return the command on the line that a shell completes, and have typer answer the shell."""
    # Only shells wait for it.
    from typer.completion import completion_init  # type: ignore[attr-defined]  # noqa: PLC0415

    completion_init()
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return next((word for word in line.split()[1:] if not word.startswith("-")), None)


class _Escaped(Exception):
    """Carry what a command raised past typer, which would swallow some errors silently."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def _letting_errors_out(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (OSError, EOFError, KeyboardInterrupt) as error:
            raise _Escaped(error) from error

    return command


def _nobody_reads() -> bool:
    """Return whether the reader of the output is gone (`| head`). Then nothing is wrong, and the rest is discarded."""
    try:
        number = sys.stdout.fileno()
    except OSError:
        return False  # it is no file
    watched = select.poll()
    watched.register(number, 0)
    if not any(events & select.POLLERR for _, events in watched.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return True


def _end(error: BaseException, debug: bool, words: Sequence[str]) -> int:
    """Print one line about the error to stderr, with its stable code in brackets, and return the exit code."""
    if isinstance(error, BrokenPipeError) and _nobody_reads():
        return 0
    match error:
        case PenstockError():
            file = next((word for word in words if word.endswith((".yaml", ".yml"))), "FILE")
            text, code = f"[{error.code}] {with_file(str(error), file)}", error.exit_code
        case KeyboardInterrupt() | typer.Abort():
            text, code = "interrupted", INTERRUPTED
        case typer.TyperException():
            text, code = f"[{UsageError.code}] {_usage(error)}", BAD_USAGE
        case _ if _follows_an_interrupt(error):
            text, code = "interrupted", INTERRUPTED
        case _:
            what = textwrap.shorten(str(error), LONGEST_UNEXPECTED, placeholder=" …")
            met = f"[{UNEXPECTED_CODE}] unexpected {type(error).__name__}: {what}"
            text = f"{met}. This is a bug; run it again with --debug and report it"
            code = UNEXPECTED
    if debug:
        sys.stderr.write(scrub("".join(traceback.format_exception(error))))
    sys.stderr.write(scrub(f"penstock: {' '.join(text.split())}\n"))
    return code


def _follows_an_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C came first: a library that is interrupted may raise an error of its own while it ends."""
    while error.__context__ is not None:
        error = error.__context__
        if isinstance(error, KeyboardInterrupt):
            return True
    return False


def _group(summary: str) -> typer.Typer:
    return typer.Typer(help=summary, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _penstock(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback; may stand anywhere.")] = False,
) -> None:
    if version:
        typer.echo(f"penstock {importlib.metadata.version('penstock')}")
        raise typer.Exit


def _not_loaded() -> None:
    """Stand in for a command that was not requested."""


def _usage(error: typer.TyperException) -> str:
    """Return the message of a usage error, with the command whose help to read."""
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "penstock"
    what = error.format_message().rstrip(".") or f"{command} needs one of its commands"
    return f"{what}. Run `{command} --help`"


if __name__ == "__main__":
    sys.exit(main())

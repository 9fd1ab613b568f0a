"""`penstock quarantine list|show|replay|drop FILE`: list, retry or give up messages that could not be decoded.

They speak to the pipeline through its state store, so they work while `penstock run` is up and while it is not.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.arguments import Destination, PipelineFile
from penstock.cli.terminal import say_when, stdout
from penstock.config.load import load
from penstock.control import quarantine
from penstock.control.text.figures import bytes_text
from penstock.control.text.hexadecimal import hexadecimal_lines
from penstock.errors import CheckFailed, UsageError

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID|TABLE]…", help="Ids, or tables as schema.table; all when none is named."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]


def quarantine_list(file: PipelineFile, json_output: AsJson = False, destination: Destination = None) -> None:
    """List the messages that could not be decoded: table, position, reason."""
    kept = quarantine.kept(load(file).only(destination))
    if json_output:
        typer.echo(json.dumps({"quarantine": [quarantine.as_json(one) for one in kept]}, indent=2, ensure_ascii=False))
        return
    if not kept:
        stdout().print("nothing is in quarantine")
        return
    shown = Table(box=None, pad_edge=False)
    for heading in ("id", "table", "change", "committed", "bytes", "reason"):
        shown.add_column(heading, overflow="fold")
    for one in kept:
        message = one.message
        committed = message.commit_time.isoformat(sep=" ", timespec="seconds")
        cells = (
            str(one.id),
            str(one.table),
            message.order,
            committed,
            bytes_text(len(message.data)),
            message.reason,
        )
        shown.add_row(*map(Text, cells))
    stdout().print(shown)


def quarantine_show(
    file: PipelineFile,
    name: Annotated[str, typer.Argument(metavar="ID", help="As `quarantine list` shows it.")],
    json_output: AsJson = False,
    destination: Destination = None,
) -> None:
    """Show one message: where it stood, why it was refused, what can be read of it, and its bytes."""
    pipeline = load(file).only(destination)
    for one in quarantine.chosen(pipeline, quarantine.kept(pipeline), [name]):
        message = one.message
        if json_output:
            typer.echo(json.dumps(quarantine.whole_json(one), indent=2))
            continue
        since = one.at.isoformat(timespec="seconds")
        lines = [
            f"message {one.id} of {one.table} at {one.destination}, kept since {since}",
            f"change   {message.order}, transaction {message.transaction}, committed {message.commit_time.isoformat()}",
            f"schema   {message.schema.fingerprint[:16]}, relation {message.schema.relation_id}",
            f"reason   {message.reason}",
            "",
            *quarantine.parts_of(one),
            "",
            *hexadecimal_lines(message.data),
        ]
        stdout().print("\n".join(lines), markup=False, highlight=False)


def quarantine_replay(file: PipelineFile, names: Names = None, destination: Destination = None) -> None:
    """Try messages again with the decoder of this penstock. A table whose messages all decode now is tried again."""
    outcome = quarantine.replay(load(file).only(destination), names or [])
    say = stdout().print
    for one in outcome.decoded:
        say(f"{one.id} {one.table}: decodes now", markup=False)
    for one, reason in outcome.refused:
        say(f"{one.id} {one.table}: still not decodable: {reason}", markup=False)
    for one in outcome.passed:
        shown = f"`penstock quarantine show {file} {one.id}` has what it says"
        say(f"{one.id} {one.table}: its table went on without it, and does not get it any more; {shown}", markup=False)
    for table in outcome.again:
        say(f"{table} will be tried again; its messages leave quarantine when it has passed them", markup=False)
    if outcome.again:
        say_when(file, outcome.pid)
    if not outcome.decoded and not outcome.refused:
        say("nothing is in quarantine")
    if outcome.refused:
        raise CheckFailed(
            f"{len(outcome.refused)} of {len(outcome.refused) + len(outcome.decoded)} messages do not decode",
            f"Report them, with `penstock quarantine show {file} ID`; or do without: penstock quarantine drop {file}",
        )


def quarantine_drop(
    file: PipelineFile,
    names: Names = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, give them up; their tables are copied again.")] = False,
    destination: Destination = None,
) -> None:
    """Give messages up. A table that stopped at one of them is copied again; an events table never gets them."""
    pipeline = load(file).only(destination)
    if not yes:
        count = len(quarantine.chosen(pipeline, quarantine.kept(pipeline), names or []))
        raise UsageError(
            f"dropping {count} messages cannot be undone: their bytes are forgotten, tables that stand at them are "
            "copied again from the source, and an events table never gets their changes",
            f"If that is meant: penstock quarantine drop {' '.join([str(file), *(names or [])])} --yes",
        )
    outcome = quarantine.drop(pipeline, names or [])
    stdout().print(f"{len(outcome.dropped)} messages are forgotten", markup=False)
    for table in outcome.resynced:
        stdout().print(f"{table} will be copied again", markup=False)
    if outcome.resynced:
        say_when(file, outcome.pid)

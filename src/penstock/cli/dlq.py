"""`penstock dlq list|show|retry|ack|purge FILE`: the dead letters, events that a stream or a table went on without.

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
from penstock.control import dead_letters
from penstock.control.text.hexadecimal import hexadecimal_lines
from penstock.errors import UsageError

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]…", help="As `dlq list` shows them; all when none is named.")
]
SomeIds = Annotated[list[str], typer.Argument(metavar="ID…", help="As `dlq list` shows them.", show_default=False)]
Tables = Annotated[
    list[str] | None, typer.Option("--table", metavar="TABLE", help="Only those of this table; may be given again.")
]
Codes = Annotated[
    list[str] | None,
    typer.Option("--code", "--kind", metavar="CODE", help="Only those with this code; may be given again."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]


def dlq_list(
    file: PipelineFile,
    table: Tables = None,
    code: Codes = None,
    json_output: AsJson = False,
    destination: Destination = None,
) -> None:
    """List the dead letters, oldest first: table, event, reason."""
    kept = dead_letters.kept(load(file).only(destination), table or [], code or [])
    if json_output:
        typer.echo(
            json.dumps({"dead_letters": [dead_letters.as_json(one) for one in kept]}, indent=2, ensure_ascii=False)
        )
        return
    if not kept:
        stdout().print("there are no dead letters")
        return
    several = len({one.kept.destination for one in kept}) > 1
    shown = Table(box=None, pad_edge=False)
    headings = ("id", *(("destination",) if several else ()), "table", "event", "key", "since", "tries", "reason")
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    for one in kept:
        letter = one.kept.letter
        cells = (
            str(one.kept.id),
            *((one.kept.destination,) if several else ()),
            str(one.table),
            f"{letter.op} {letter.place}",
            dead_letters.key_text(letter.key),
            f"{one.kept.at:%Y-%m-%d %H:%M:%S}",
            f"{one.kept.attempts}{', asked for again' if one.kept.asked else ''}",
            f"[{letter.code}] {letter.reason}",
        )
        shown.add_row(*map(Text, cells))
    stdout().print(shown)


def dlq_show(
    file: PipelineFile,
    name: Annotated[str, typer.Argument(metavar="ID", help="As `dlq list` shows it.")],
    json_output: AsJson = False,
    destination: Destination = None,
) -> None:
    """Show one dead letter: which event, why it was taken out, and what it holds."""
    pipeline = load(file).only(destination)
    (one,) = dead_letters.chosen(pipeline, dead_letters.kept(pipeline), [name])
    letter, message = one.kept.letter, one.kept.letter.message
    if json_output:
        typer.echo(json.dumps(dead_letters.whole_json(one), indent=2, ensure_ascii=False))
        return
    parts = dead_letters.parts_of(one)
    lines = [
        f"dead letter {one.kept.id} of {one.table} at {one.kept.destination}, kept since {one.kept.at.isoformat()}",
        f"event    {letter.op} {letter.place}",
        f"key      {dead_letters.key_text(letter.key) or 'none'}",
        *([f"topic    {letter.topic}"] if letter.topic else []),
        *([] if message is None else [f"change   {message.order}, transaction {message.transaction}"]),
        f"reason   [{letter.code}] {letter.reason}",
        f"tried    {one.kept.attempts} times, last {one.kept.tried_at.isoformat()}",
        *([""] if parts else []),
        *parts,
        *([] if letter.value is None else ["", *hexadecimal_lines(letter.value)]),
    ]
    stdout().print("\n".join(lines), markup=False, highlight=False)


def dlq_retry(
    file: PipelineFile,
    names: Ids = None,
    table: Tables = None,
    code: Codes = None,
    destination: Destination = None,
) -> None:
    """Send dead letters again, oldest first, behind what the stream has published by then.

    The events are made again from what the source sent, with the rules and processors of the present file. A letter
    that is published leaves the dead letters; one that fails stays, with its new reason.
    """
    asked = dead_letters.ask(load(file).only(destination), names or [], table or [], code or [])
    for one in asked.new:
        stdout().print(f"{one.kept.id} {one.table}: will be sent again", markup=False)
    for one in asked.before:
        stdout().print(f"{one.kept.id} {one.table}: is already to be sent again", markup=False)
    for one in asked.rows:
        said = f"is a row of a table: penstock resync {file} {one.table} copies the table again, and this row with it"
        stdout().print(f"{one.kept.id} {one.table}: {said}", markup=False)
    if asked.new or asked.before:
        say_when(file, asked.pid)
    elif not asked.rows:
        stdout().print("there are no dead letters")


def dlq_ack(file: PipelineFile, names: SomeIds, destination: Destination = None) -> None:
    """Remove dead letters that you have dealt with. They are not in the stream, and will not be."""
    gone = dead_letters.remove(load(file).only(destination), names)
    stdout().print(f"{len(gone)} dead letters are removed", markup=False)


def dlq_purge(
    file: PipelineFile,
    table: Tables = None,
    code: Codes = None,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, remove them; their events are lost.")] = False,
    destination: Destination = None,
) -> None:
    """Remove all dead letters, or those of a table or code. Their events are lost."""
    pipeline = load(file).only(destination)
    if not yes:
        count = len(dead_letters.kept(pipeline, table or [], code or []))
        named = [*(f"--table {name}" for name in table or []), *(f"--code {name}" for name in code or [])]
        words = " ".join([str(file), *named])
        raise UsageError(
            f"removing {count} dead letters cannot be undone: no stream gets their events",
            f"If that is meant: penstock dlq purge {words} --yes",
        )
    gone = dead_letters.remove(pipeline, [], table or [], code or [])
    stdout().print(f"{len(gone)} dead letters are removed", markup=False)

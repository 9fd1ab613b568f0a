"""`penstock init FILE [--remove | --sql]`: the optional DDL trigger, which makes structure changes certain."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.source.factory import source_of


def init(
    file: PipelineFile,
    remove_it: Annotated[bool, typer.Option("--remove", help="Take the trigger away again.")] = False,
    only_sql: Annotated[bool, typer.Option("--sql", help="Print the statements and change nothing.")] = False,
) -> None:
    """Install an event trigger at the source that writes every new table structure into the stream itself.

    Without it, structure is read from the catalogue, which may have moved on by then; then penstock copies the table
    again. It needs a superuser, works for every pipeline that reads the database, and takes effect with the next ALTER
    TABLE. Run it again after an update of penstock when `penstock check` says so.
    """
    console = stdout()
    sources = [source_of(section) for section in load(file).sources]
    triggers = [(source, source.structure_trigger) for source in sources]
    if only_sql:
        statements = [one for _, trigger in triggers if trigger for one in trigger.statements(remove=remove_it)]
        for statement in dict.fromkeys(statements):
            console.print(f"{statement};", markup=False, soft_wrap=True)
        return
    for source, trigger in triggers:
        if trigger is None:
            console.print(f"the source at {source.endpoint} needs no trigger", markup=False)
        elif remove_it and trigger.remove():
            console.print(f"removed event trigger {trigger.name} at {source.endpoint}", markup=False)
        elif remove_it:
            console.print(f"there is no event trigger {trigger.name} at {source.endpoint}", markup=False)
        else:
            trigger.install()
            console.print(f"installed event trigger {trigger.name} at {source.endpoint}", markup=False)
            console.print(f"penstock init {file} --remove takes it away again", markup=False)

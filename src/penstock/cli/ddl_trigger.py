"""`penstock source ddl-trigger install|remove FILE`: the optional trigger that makes structure changes certain."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.source.contract import Source, StructureTrigger
from penstock.source.factory import source_of

OnlySql = Annotated[bool, typer.Option("--sql", help="Print the statements and change nothing.")]


def install(file: PipelineFile, only_sql: OnlySql = False) -> None:
    """Install an event trigger at the source that writes every new table structure into the stream itself.

    Without it, structure is read from the catalogue, which may have moved on by then; then penstock copies the table
    again. It needs a superuser, works for every pipeline that reads the database, and takes effect with the next ALTER
    TABLE. Run it again after an update of penstock when `penstock check` says so.
    """
    triggers = _triggers(file)
    if only_sql:
        _print(triggers, remove=False)
        return
    console = stdout()
    for source, trigger in triggers:
        if trigger is None:
            console.print(f"the source at {source.endpoint} needs no trigger", markup=False)
            continue
        trigger.install()
        console.print(f"installed event trigger {trigger.name} at {source.endpoint}", markup=False)
        console.print(f"penstock source ddl-trigger remove {file} takes it away again", markup=False)


def remove(file: PipelineFile, only_sql: OnlySql = False) -> None:
    """Take the event trigger away. Structure is then read from the catalogue again."""
    triggers = _triggers(file)
    if only_sql:
        _print(triggers, remove=True)
        return
    console = stdout()
    for source, trigger in triggers:
        if trigger is None:
            console.print(f"the source at {source.endpoint} needs no trigger", markup=False)
        elif trigger.remove():
            console.print(f"removed event trigger {trigger.name} at {source.endpoint}", markup=False)
        else:
            console.print(f"there is no event trigger {trigger.name} at {source.endpoint}", markup=False)


def _triggers(file: PipelineFile) -> list[tuple[Source, StructureTrigger | None]]:
    sources = [source_of(section) for section in load(file).sources]
    return [(source, source.structure_trigger) for source in sources]


def _print(triggers: list[tuple[Source, StructureTrigger | None]], *, remove: bool) -> None:
    statements = [one for _, trigger in triggers if trigger for one in trigger.statements(remove=remove)]
    for statement in dict.fromkeys(statements):
        stdout().print(f"{statement};", markup=False, soft_wrap=True)

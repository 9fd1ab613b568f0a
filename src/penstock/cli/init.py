"""`penstock init FILE [--remove | --sql]`: the optional DDL trigger, which makes structure changes certain."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.arguments import PipelineFile
from penstock.cli.terminal import stdout
from penstock.config.load import load
from penstock.errors import UsageError
from penstock.source.postgres.connect import connect, endpoint, role_of
from penstock.source.postgres.ddl_trigger import REMOVE, TRIGGER, install, install_statements, remove, state


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
    pipeline = load(file)
    console = stdout()
    if only_sql:
        roles = dict.fromkeys(role_of(source.url.get_secret_value()) for source in pipeline.sources)
        statements = dict.fromkeys(one for role in roles for one in install_statements(role))
        for statement in REMOVE if remove_it else statements:
            console.print(f"{statement};", markup=False, soft_wrap=True)
        return
    for source in pipeline.sources:
        url = source.url.get_secret_value()
        with connect(url) as connection:
            if remove_it:
                if state(connection) == "absent":
                    console.print(f"there is no event trigger {TRIGGER} at {endpoint(url)}", markup=False)
                    continue
                remove(connection)
                console.print(f"removed event trigger {TRIGGER} at {endpoint(url)}", markup=False)
                continue
            install(connection)
            if (found := state(connection)) != "trusted":
                raise UsageError(
                    f"event trigger {TRIGGER} at {endpoint(url)} is {found} after it was installed",
                    "The schema penstock may hold objects of another owner: drop that schema, then run init again",
                )
            console.print(f"installed event trigger {TRIGGER} at {endpoint(url)}", markup=False)
            console.print(f"penstock init {file} --remove takes it away again", markup=False)

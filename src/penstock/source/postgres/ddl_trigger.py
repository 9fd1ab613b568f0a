"""The optional DDL trigger: the source itself tells each new structure, at its exact place in the stream.

An event trigger writes a transactional logical message after every command that makes or alters a table: the columns
with their numbers, as the catalogue has them at that very moment. Capture (relation_schema.py) takes them in place of
the catalogue as it is later, so nothing is guessed. A trigger that fails must not fail the command: it then says that
it does not know, and capture falls back to the catalogue.

Postgres places a message where its record ends, and a row where its record begins. If they are of two subtransactions
(the trigger's own, to catch what fails, or a user's savepoint) and one record follows the other, it is the same place,
and the row may come first. So an empty message stands behind the others: it takes that place.

`penstock init` installs and removes it; event triggers are a superuser's to make.
"""

from __future__ import annotations

import json

import psycopg
from psycopg import sql

from penstock.errors import SourceMisconfigured
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.discover import STORAGE, stamp_of
from penstock.source.postgres.relation_schema import RelationSchemas, ToldColumn, ToldStructure

PREFIX = "penstock"
TRIGGER = "penstock_ddl"
_FUNCTION = "penstock.tell_structure()"

_DEFINITION = f"""
    json_build_object(
        'relation', c.oid::bigint,
        'storage', {STORAGE},
        'plain', command ~* '^\\s*alter\\s+table\\M' AND command !~* '\\musing\\M' AND command !~ ';\\s*\\S',
        'stamps', (SELECT json_agg(a.attnum || ':' || a.xmin ORDER BY a.attnum)
                   FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
        'key', (SELECT json_agg(a.attname ORDER BY k.place)
                FROM pg_catalog.pg_index i,
                     unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY k (number, place),
                     pg_catalog.pg_attribute a
                WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid AND a.attnum = k.number),
        'columns', (SELECT json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod, a.attnum,
                                                     (a.attmissingval::text::text[])[1], a.attgenerated <> '')
                                    ORDER BY a.attnum)
                    FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
    )
"""
INSTALL = (
    "CREATE SCHEMA IF NOT EXISTS penstock",
    f"""CREATE OR REPLACE FUNCTION {_FUNCTION} RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $body$
DECLARE
    altered oid;
    command text := coalesce(current_query(), '');
BEGIN
    FOR altered IN
        SELECT DISTINCT objid FROM pg_event_trigger_ddl_commands()
        WHERE classid = 'pg_class'::regclass AND object_type IN ('table', 'table column')
    LOOP
        BEGIN
            PERFORM pg_logical_emit_message(true, '{PREFIX}', {_DEFINITION}::text)
            FROM pg_class c WHERE c.oid = altered;
        EXCEPTION WHEN OTHERS THEN
            PERFORM pg_logical_emit_message(true, '{PREFIX}', json_build_object('unknown', altered::bigint)::text);
        END;
    END LOOP;
    PERFORM pg_logical_emit_message(true, '{PREFIX}', '');
END
$body$""",
    f"DROP EVENT TRIGGER IF EXISTS {TRIGGER}",
    f"""CREATE EVENT TRIGGER {TRIGGER} ON ddl_command_end WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE')
EXECUTE FUNCTION {_FUNCTION}""",
    f"COMMENT ON EVENT TRIGGER {TRIGGER} IS 'tells penstock about altered tables; penstock init --remove drops it'",
)
REMOVE = (
    f"DROP EVENT TRIGGER IF EXISTS {TRIGGER}",
    f"DROP FUNCTION IF EXISTS {_FUNCTION}",
    "DROP SCHEMA IF EXISTS penstock",
    f"""SELECT pg_logical_emit_message(true, '{PREFIX}', '{{"removed": true}}')""",
)


def is_installed(connection: Connection) -> bool:
    with source_errors("looking for the DDL trigger"):
        row = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = %s AND evtenabled <> 'D')", (TRIGGER,)
        ).fetchone()
    return row is not None and bool(row[0])


def install(connection: Connection) -> None:
    """All or nothing; what is there already is replaced. Holds from the next command on."""
    _run(connection, INSTALL, "made")


def remove(connection: Connection) -> None:
    """Nothing of it stays. From here on the catalogue is asked again."""
    _run(connection, REMOVE, "removed")


def _run(connection: Connection, statements: tuple[str, ...], done: str) -> None:
    try:
        with source_errors("working on the DDL trigger"), connection.transaction():
            for statement in statements:
                connection.execute(sql.SQL(statement))
    except SourceMisconfigured as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise SourceMisconfigured(
            f"the DDL trigger cannot be {done}: {error.__cause__.diag.message_primary}",
            "Event triggers are a superuser's to make: let one run what `penstock init FILE --sql` prints. Without the "
            "trigger penstock works too, and asks the catalogue",
        ) from error


def take_message(schemas: RelationSchemas, prefix: str, content: bytes) -> None:
    """What a logical message says, if it is one of the trigger's. One that makes no sense is somebody else's."""
    if prefix != PREFIX or not content:
        return
    try:
        told = json.loads(content)
        if told.get("removed"):
            schemas.told_no_more()
        elif "unknown" in told:
            schemas.forget(int(told["unknown"]))
        else:
            schemas.told(_structure(told))
    except (ValueError, TypeError, KeyError, AttributeError):
        return


def _structure(told: dict[str, object]) -> ToldStructure:
    columns, stamps, key = told["columns"] or [], told["stamps"] or [], told["key"] or []
    assert isinstance(columns, list)
    assert isinstance(stamps, list)
    assert isinstance(key, list)
    return ToldStructure(
        relation_id=int(str(told["relation"])),
        columns=tuple(ToldColumn(*column) for column in columns),
        key=tuple(key),
        storage=int(str(told["storage"])),
        stamp=stamp_of([str(item) for item in stamps]),
        numbered=len(stamps),
        plain=bool(told["plain"]),
    )

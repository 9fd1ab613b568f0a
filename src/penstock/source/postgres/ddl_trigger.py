"""The optional DDL trigger: the source itself reports each new structure at its exact place in the stream.

An event trigger writes a transactional logical message after every command that makes or alters a table: the columns
with their numbers, as the catalogue has them at that very moment. Capture reads the messages (ddl_messages.py) and
believes one only as far as the catalogue agrees with it (relation_schema.py). So a trigger that fails, or that somebody
has switched off, costs certainty and nothing else, and it must never fail the command.

Any role may write logical messages. Those of the trigger are signed with a secret that only its owner and the
pipelines' roles can read: the trigger's function runs as its owner. The secret is the only row of a materialized view,
because a view like that is never published, so the secret is in no stream, log or lake. The signature covers the
transaction, so a message cannot be used again in another one.

Postgres places a message where its record ends, and a row where its record begins. If they are of two subtransactions
(the trigger's own, to catch what fails, or a user's savepoint) and one record follows the other, it is the same place,
and the row may come first. So an empty message stands behind the others: it takes that place.

`penstock source ddl-trigger` installs and removes it, and `run` installs it with `ddl_trigger: auto`. Event triggers
are a superuser's to make.
"""

from __future__ import annotations

from typing import Literal

import psycopg
from psycopg import sql

from penstock.errors import SourceMisconfigured
from penstock.source.postgres.connect import Connection, source_errors
from penstock.source.postgres.discover import STORAGE
from penstock.source.postgres.statements import quoted

PREFIX = "penstock"
TRIGGER = "penstock_ddl"
_FUNCTION = "penstock.tell_structure()"

_STRUCTURE = f"""json_build_object(
            'xid', (pg_current_xact_id()::text::numeric % 4294967296)::bigint,
            'relation', c.oid::bigint,
            'storage', {STORAGE},
            'stamps', (SELECT json_agg(a.attnum || ':' || a.xmin ORDER BY a.attnum)
                       FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
            'columns', (SELECT json_agg(json_build_array(a.attnum, a.attname, a.atttypid::bigint, a.atttypmod)
                                        ORDER BY a.attnum)
                        FROM pg_catalog.pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
        )"""
_BODY = f"""
DECLARE
    altered oid;
    secret bytea;
    told bytea;
    proof bytea;
BEGIN
    BEGIN
        SELECT s.key INTO STRICT secret FROM penstock.secret s;
        FOR altered IN
            SELECT DISTINCT objid FROM pg_event_trigger_ddl_commands()
            WHERE classid = 'pg_class'::regclass AND object_type IN ('table', 'table column')
        LOOP
            SELECT convert_to({_STRUCTURE}::text, 'UTF8') INTO told
            FROM pg_catalog.pg_class c WHERE c.oid = altered AND c.relpersistence = 'p';
            IF FOUND THEN
                proof := convert_to(encode(sha256(secret || sha256(secret || told)), 'hex'), 'UTF8');
                PERFORM pg_logical_emit_message(true, '{PREFIX}', proof || told);
            END IF;
        END LOOP;
    EXCEPTION WHEN OTHERS THEN
        NULL;  -- the command must not fail; penstock asks the catalogue
    END;
    PERFORM pg_logical_emit_message(true, '{PREFIX}', '');
END
"""
_INSTALL = (
    "CREATE SCHEMA IF NOT EXISTS penstock",
    """CREATE MATERIALIZED VIEW IF NOT EXISTS penstock.secret AS
SELECT pg_catalog.sha256(pg_catalog.convert_to(
    pg_catalog.gen_random_uuid()::pg_catalog.text || pg_catalog.gen_random_uuid()::pg_catalog.text, 'UTF8')) AS key""",
    "REVOKE ALL ON penstock.secret FROM PUBLIC",
    f"""CREATE OR REPLACE FUNCTION {_FUNCTION} RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body${_BODY}$body$""",
    f"DROP EVENT TRIGGER IF EXISTS {TRIGGER}",
    f"""CREATE EVENT TRIGGER {TRIGGER} ON ddl_command_end WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE')
EXECUTE FUNCTION {_FUNCTION}""",
    f"ALTER EVENT TRIGGER {TRIGGER} ENABLE ALWAYS",
    f"COMMENT ON EVENT TRIGGER {TRIGGER} IS"
    " 'reports altered tables to penstock; `penstock source ddl-trigger remove` drops it'",
)
REMOVE = (
    f"DROP EVENT TRIGGER IF EXISTS {TRIGGER}",
    f"DROP FUNCTION IF EXISTS {_FUNCTION}",
    "DROP MATERIALIZED VIEW IF EXISTS penstock.secret",
    "DROP SCHEMA IF EXISTS penstock",
)
_STATE = f"""
    SELECT e.evtenabled = 'D', p.prosecdef AND p.prosrc = %s AND p.proowner = e.evtowner,
           c.relowner = e.evtowner,
           has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
    FROM pg_event_trigger e
    JOIN pg_proc p ON p.oid = e.evtfoid
    LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'penstock')
        ON c.relname = 'secret' AND c.relkind = 'm'
    WHERE e.evtname = '{TRIGGER}'
"""

State = Literal["absent", "disabled", "outdated", "unreadable", "trusted"]


def install_statements(role: str) -> tuple[str, ...]:
    """Return the statements that install the trigger or bring it up to date, for a pipeline that reads as `role`."""
    reader = quoted(role)
    return (
        *_INSTALL,
        f"GRANT USAGE ON SCHEMA penstock TO {reader}",
        f"GRANT SELECT ON penstock.secret TO {reader}",
    )


def state(connection: Connection) -> State:
    """Return how far the trigger can be trusted.

    `outdated`: it is not the one that `install` makes, or its secret is somebody else's. `unreadable`: this role may
    not read the secret, so messages prove nothing to it.
    """
    with source_errors("looking for the DDL trigger"):
        row = connection.execute(_STATE, (_BODY,)).fetchone()
    if row is None:
        return "absent"
    disabled, current, owned, readable = row
    if disabled:
        return "disabled"
    if not current or not owned:
        return "outdated"
    return "trusted" if readable else "unreadable"


def read_secret(connection: Connection) -> bytes | None:
    """Return what messages of the trigger are signed with; None when there is no trigger that this role can trust."""
    if state(connection) not in ("trusted", "disabled"):
        return None
    with source_errors("reading the DDL trigger's secret"):
        try:
            row = connection.execute("SELECT key FROM penstock.secret").fetchone()
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.UndefinedTable,
            psycopg.errors.ObjectNotInPrerequisiteState,
        ):
            return None  # taken away since we looked, or created WITH NO DATA
    return None if row is None else bytes(row[0])


def install(connection: Connection) -> None:
    """Install the trigger, or bring it up to date, all or nothing. It takes effect with the next command."""
    _run(connection, install_statements(connection.info.user), "made")


def remove(connection: Connection) -> None:
    """Remove everything that `install` made. From here on the catalogue alone is asked."""
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
            "Event triggers are a superuser's to make: let one run what `penstock source ddl-trigger install FILE "
            "--sql` prints. Without the trigger penstock works too, and asks the catalogue",
        ) from error

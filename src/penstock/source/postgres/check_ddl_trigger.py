"""What `check` says of the DDL trigger: nothing when it is not there, or when all is well."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.source.finding import Finding
from penstock.source.postgres.connect import Connection
from penstock.source.postgres.ddl_trigger import TRIGGER, state
from penstock.source.postgres.statements import quoted

_MEANWHILE = "penstock asks the catalogue instead"


def check_ddl_trigger(connection: Connection) -> Iterator[Finding]:
    role = quoted(connection.info.user)
    match state(connection):
        case "disabled":
            yield Finding(
                "warning",
                f"the event trigger {TRIGGER} is disabled; {_MEANWHILE}",
                f"ALTER EVENT TRIGGER {TRIGGER} ENABLE ALWAYS",
            )
        case "outdated":
            yield Finding(
                "warning",
                f"the event trigger {TRIGGER} was made by another version of penstock, or its secret is missing: "
                f"its messages are not trusted; {_MEANWHILE}",
                "penstock source ddl-trigger install FILE, as a superuser; --sql prints the statements",
            )
        case "unreadable":
            yield Finding(
                "warning",
                f"the role may not read the secret of the event trigger {TRIGGER}, so its messages are not trusted; "
                f"{_MEANWHILE}",
                f"GRANT USAGE ON SCHEMA penstock TO {role}; GRANT SELECT ON penstock.secret TO {role}",
            )

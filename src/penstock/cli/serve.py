"""`penstock serve` and `penstock tokens`: run pipelines with a REST interface, metrics and a web page."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from penstock.cli.run import LogFormat, LogFormatOption, LogLevel, LogLevelOption, log_to_stderr
from penstock.cli.terminal import stdout
from penstock.config.model import Pipeline
from penstock.errors import EnvironmentMissing, UsageError
from penstock.runtime.process.signals import SignalFlag, stop_on_signals

if TYPE_CHECKING:
    from penstock.server.tokens import TokenFile

LISTEN = "127.0.0.1:8080"
NEEDED = ("fastapi", "uvicorn", "jinja2")
LOG = structlog.get_logger("server")

Listen = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen.")]
Certificate = Annotated[
    Path | None, typer.Option("--tls-certificate", metavar="FILE", help="A certificate in PEM, for TLS.")
]
Key = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key in PEM.")]
NoAuth = Annotated[bool, typer.Option("--no-auth", help="Ask for no token; on loopback only.")]
Home = Annotated[
    Path | None,
    typer.Option("--home", metavar="FOLDER", help="The server's own folder; penstock-server beside the pipelines."),
]
Places = Annotated[
    list[Path], typer.Argument(metavar="FOLDER|FILE…", help="A folder of pipeline files, or files.", show_default=False)
]


def serve(
    places: Places,
    listen: Listen = LISTEN,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    no_auth: NoAuth = False,
    edit: Annotated[bool, typer.Option("--edit", help="Let admins change pipeline files.")] = False,
    home: Home = None,
    rate: Annotated[float, typer.Option(min=1, metavar="N", help="Requests per second and address, at most.")] = 500.0,
    query_rows: Annotated[int, typer.Option(min=1, metavar="N", help="Rows that a query may return.")] = 1000,
    query_seconds: Annotated[float, typer.Option(min=1, metavar="N", help="Seconds that a query may take.")] = 30.0,
    metrics_tables: Annotated[
        int, typer.Option(min=0, metavar="N", help="Above so many tables, metrics are by destination only.")
    ] = 500,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run and supervise pipelines, one process each, with a REST interface, metrics and a web page.

    SIGTERM and Ctrl-C let every pipeline finish its batch first. A server that is killed leaves them running, and the
    next one takes them over.
    """
    require_server()
    from penstock.server.app import make_app  # noqa: PLC0415 - only with the extra
    from penstock.server.fleet import Fleet  # noqa: PLC0415
    from penstock.server.listening import Address, listening  # noqa: PLC0415
    from penstock.server.service import Service, Settings  # noqa: PLC0415

    log_to_stderr(log_level, log_format)
    missing = next((place for place in places if not place.exists()), None)
    if missing is not None:
        raise UsageError(f"there is no file or folder {missing}", "Name pipeline files, or a folder of them")
    address = Address.parse(listen, tls_certificate, tls_key)
    if no_auth:
        address.require_no_auth_is_safe()
    own = home_of(places, home)
    tokens = opened_tokens(own, no_auth)
    settings = Settings(
        no_auth=no_auth,
        secure=address.is_secure,
        edit=edit,
        rate=rate,
        query_rows=query_rows,
        query_seconds=query_seconds,
        tables_in_metrics=metrics_tables,
    )
    fleet = Fleet([place.resolve() for place in places], own, ["--log-format", log_format, "--log-level", log_level])
    service = Service(fleet, tokens, settings)
    stop = SignalFlag()
    stop_on_signals(stop)
    try:
        with listening(make_app(service), address) as url:
            fleet.start()
            LOG.info("listening", url=url, pipelines=len(fleet.members()))
            stop.wait()
    finally:
        service.jobs.close()
        fleet.close()


@contextmanager
def serving_own_run(
    pipeline: Pipeline, listen: str, certificate: Path | None, key: Path | None, *, no_auth: bool
) -> Iterator[None]:
    """Serve the pipeline that this process is about to run, until the block ends (`penstock run --listen`)."""
    require_server()
    from penstock.server.app import make_app  # noqa: PLC0415 - only with the extra
    from penstock.server.fleet import Fleet  # noqa: PLC0415
    from penstock.server.listening import Address, listening  # noqa: PLC0415
    from penstock.server.service import Service, Settings  # noqa: PLC0415

    address = Address.parse(listen, certificate, key)
    if no_auth:
        address.require_no_auth_is_safe()
    tokens = opened_tokens(pipeline.home, no_auth)
    fleet = Fleet.of_own_run(pipeline)
    service = Service(fleet, tokens, Settings(no_auth=no_auth, secure=address.is_secure))
    try:
        with listening(make_app(service), address) as url:
            LOG.info("listening", url=url)
            yield
    finally:
        service.jobs.close()
        fleet.close(drain=False)


def home_of(places: list[Path], home: Path | None) -> Path:
    """Return the server's own folder: of tokens, logs, and which pipelines are to run."""
    if home is not None:
        return home.resolve()
    first = places[0].resolve()
    return (first if first.is_dir() else first.parent) / "penstock-server"


def opened_tokens(home: Path, no_auth: bool) -> TokenFile:
    """Return the tokens; at the first start one is made and shown, once."""
    from penstock.server.tokens import TokenFile  # noqa: PLC0415

    tokens = TokenFile(home / "tokens.json")
    made = None if no_auth else tokens.make_first()
    if made is not None:
        typer.echo(f"This token may do everything, and is shown only now:\n\n    {made}\n", err=True)
        typer.echo(f"Make others with `penstock tokens add`; their hashes are in {tokens.path}", err=True)
    return tokens


def require_server() -> None:
    """EnvironmentMissing when the extra is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentMissing(
            f"the server needs {', '.join(missing)}", "Install the extra: pip install 'penstock[server]'"
        )


TokenHome = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The server's folder: penstock-server beside the pipelines.")
]
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: letters, digits and _.")]


def tokens_add(
    folder: TokenHome,
    name: TokenName,
    role: Annotated[
        str, typer.Option(metavar="viewer|operator|admin", help="Look; act on tables and read rows; also edit.")
    ] = "viewer",
) -> None:
    """Make a token and print it, once. A server that is up knows it at once."""
    from penstock.server.tokens import Role  # noqa: PLC0415

    if role not in list(Role):
        raise UsageError(f"there is no role {role}", f"It may be {', '.join(Role)}")
    typer.echo(_tokens(folder).add(name, Role(role)))


def tokens_list(folder: TokenHome) -> None:
    """List the tokens by name, with their roles. The tokens themselves are not kept."""
    for holder, made in _tokens(folder).listed():
        stdout().print(f"{holder.name}  {holder.role}  {made}", markup=False)


def tokens_remove(folder: TokenHome, name: TokenName) -> None:
    """Remove a token. Whoever signed in with it is signed out."""
    _tokens(folder).remove(name)
    stdout().print(f"token {name} is removed", markup=False)


def _tokens(folder: Path) -> TokenFile:
    from penstock.server.tokens import TokenFile  # noqa: PLC0415

    inner = folder / "penstock-server"
    return TokenFile((inner if inner.is_dir() else folder) / "tokens.json")

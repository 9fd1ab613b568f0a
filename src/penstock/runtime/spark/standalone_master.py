"""The master of a Spark standalone cluster: whether it is there before Java is started, and whether it took us.

Spark itself asks for a minute, then logs that it gives up and hands out a context all the same, which ends a moment
later. Here both are one error that names the address and where it is set. Other masters (local, YARN, Kubernetes) are
none of this module's business: Spark fails by itself where they cannot be reached. Neighbour: `spark` starts the
context.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from penstock.errors import ConfigError, EnvironmentMissing

LOG = structlog.get_logger("spark")
STANDALONE = "spark://"
WAIT_SECONDS = 10.0
TRY_SECONDS = 2.0
TRY_EVERY = 0.25
NOT_REGISTERED = "spark-application-"  # how Spark begins the id of an application that no master has given one
NOT_TAKEN_YET = "it has not taken our application yet; Spark tries for a minute"
ENDED = re.compile(r"Application has been killed\. Reason: (.+)")


def is_standalone(settings: Mapping[str, str]) -> bool:
    return settings.get("spark.master", "").startswith(STANDALONE)


def require_master(settings: Mapping[str, str], where: str, wait: float = WAIT_SECONDS) -> None:
    """Raise EnvironmentMissing unless at least one of the masters takes a connection.

    One that is just being started is waited for. `where` the address is set is part of the message. Does nothing for
    masters of another kind.
    """
    deadline, told = time.monotonic() + wait, False
    while why := refusals(settings, where):
        master = settings["spark.master"]
        if time.monotonic() >= deadline:
            raise EnvironmentMissing(
                f"Spark's master {master} ({where}) does not answer: {why}",
                "Start the cluster, or correct the address; without `master` the pipeline runs on this machine",
            )
        if not told:
            LOG.warning("waiting for the Spark master", master=master, what=why, seconds=wait)
            told = True
        time.sleep(TRY_EVERY)


def refusals(settings: Mapping[str, str], where: str) -> str:
    """Why none of the masters takes a connection; "" when one does, or when there is no standalone master to ask."""
    if not is_standalone(settings):
        return ""
    refused = [_refusal(*address) for address in _addresses(settings["spark.master"], where)]
    return "; ".join(dict.fromkeys(refused)) if all(refused) else ""


@contextmanager
def telling_of_a_wait(settings: Mapping[str, str]) -> Iterator[None]:
    """While the block registers us, says that it takes long, if it does: Spark tries for a minute."""
    tell = partial(LOG.warning, "waiting for the Spark master", master=settings.get("spark.master"), what=NOT_TAKEN_YET)
    late = threading.Timer(WAIT_SECONDS, tell)
    late.daemon = True
    if is_standalone(settings):
        late.start()
    try:
        yield
    finally:
        late.cancel()


def is_registered(application: str) -> bool:
    """Return whether a master gave the application its id.

    Known at once, when Spark has not yet ended a context without.
    """
    return not application.startswith(NOT_REGISTERED)


def not_registered(master: str, where: str, why: str) -> EnvironmentMissing:
    return EnvironmentMissing(
        f"Spark's master {master} ({where}) did not take our application: {why or 'no reason given'}",
        "See that a Spark master of our version listens there and is active; its own log may say more",
    )


def why_ended(log: Path, since: int) -> str:
    """Return why Spark says that the application was ended, from this byte of its log on; "" when it was not."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(since)
        found = ENDED.findall(file.read().decode(errors="replace"))
        return found[-1].strip().rstrip(".") if found else ""
    return ""


def _addresses(master: str, where: str) -> list[tuple[str, int]]:
    """`spark://one:7077,other:7077` names several, of which one leads."""
    found = []
    for each in master.removeprefix(STANDALONE).split(","):
        try:
            parts = urlsplit(f"{STANDALONE}{each.strip()}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if host is None or port is None:
            raise ConfigError(
                f"{where}: `{each}` in {master} is not a host with its port", "Write it like spark://spark-master:7077"
            )
        found.append((host, port))
    return found


def _refusal(host: str, port: int) -> str:
    """Say why nobody answers there; "" when somebody does."""
    try:
        socket.create_connection((host, port), TRY_SECONDS).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""

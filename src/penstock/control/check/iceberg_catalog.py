"""Check the catalog of an Iceberg destination: is one named that can hold it, and does it commit whole batches?

A REST catalog is asked for its configuration, with the token or the client's credentials that the file has for it, as
Iceberg's own client would. Nothing is made or changed there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from penstock.config.destinations import IcebergDestination
from penstock.config.model import Pipeline
from penstock.control.text.secrets import scrub
from penstock.source.finding import Finding

SECONDS = 10.0
TRANSACTION = "transactions/commit"
NESSIE = "nessie.is-nessie-catalog"
REFUSED = (401, 403)


def check_catalogs(pipeline: Pipeline) -> Iterator[Finding]:
    """Report what the catalogs of a pipeline's Iceberg destinations lack."""
    for destination in pipeline.destinations:
        if isinstance(destination, IcebergDestination):
            yield from _check(destination)


def _check(destination: IcebergDestination) -> Iterator[Finding]:
    if not destination.catalog and destination.folder is None:
        yield Finding(
            "error",
            f"destination {destination.name}: the warehouse {destination.warehouse} has no `catalog`, and the one "
            "that is used without it is a file in a local warehouse",
            "Name the catalog: `catalog: {type: rest, uri: …}`, or glue, hive or jdbc (docs/iceberg.md)",
        )
    elif destination.catalog_type == "rest":
        yield from _check_rest(destination)
    elif destination.catalog_type != "jdbc":
        yield _by_itself(destination)


def _check_rest(destination: IcebergDestination) -> Iterator[Finding]:
    address = destination.catalog.get("uri", "").rstrip("/")
    try:
        told = _configuration(address, destination.catalog, destination.warehouse)
    except HTTPError as error:
        refused = error.code in REFUSED
        yield Finding(
            "error",
            f"destination {destination.name}: the catalog {scrub(address)} answers {error.code} {error.reason}",
            "Correct `token` or `credential` of its `catalog`" if refused else "See that `uri` and `warehouse` are its",
        )
    except (OSError, HTTPException, ValueError) as error:
        yield Finding(
            "error",
            f"destination {destination.name}: the catalog {scrub(address)} cannot be asked: {scrub(str(error))[:200]}",
            "See that it runs and can be reached from here",
        )
    else:
        if not _commits_several(told):
            yield _by_itself(destination)


def _by_itself(destination: IcebergDestination) -> Finding:
    return Finding(
        "note",
        f"destination {destination.name}: its catalog offers no commit of several tables, so the tables of a batch "
        "become visible one after the other",
        "A JDBC catalog, or a REST catalog with `transactions/commit`, shows all of them in one step",
    )


def _commits_several(told: Mapping[str, Any]) -> bool:
    if any(str(one).endswith(TRANSACTION) for one in told.get("endpoints") or ()):
        return True
    merged = {**(told.get("defaults") or {}), **(told.get("overrides") or {})}
    return merged.get(NESSIE) == "true"  # which does, and lists no endpoints


def _configuration(address: str, catalog: Mapping[str, str], warehouse: str) -> Mapping[str, Any]:
    token = catalog.get("token") or _token(address, catalog)
    asked = urlencode({"warehouse": catalog.get("warehouse", warehouse)})
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return _answer(Request(f"{address}/v1/config?{asked}", headers=headers))


def _token(address: str, catalog: Mapping[str, str]) -> str:
    """Return a token for the client's credentials; "" where there are none."""
    client, _, secret = catalog.get("credential", "").rpartition(":")
    if not secret:
        return ""
    form = {"grant_type": "client_credentials", "client_secret": secret, "scope": catalog.get("scope", "catalog")}
    form |= {"client_id": client} if client else {}
    where = catalog.get("oauth2-server-uri", f"{address}/v1/oauth/tokens")
    return str(_answer(Request(where, data=urlencode(form).encode())).get("access_token", ""))


def _answer(request: Request) -> Mapping[str, Any]:
    if not request.full_url.startswith(("http://", "https://")):
        raise ValueError("its `uri` is no address of a web server")
    with urlopen(request, timeout=SECONDS) as answer:
        told = json.loads(answer.read())
    if not isinstance(told, dict):
        raise ValueError("it answers with something else than a configuration")
    return told

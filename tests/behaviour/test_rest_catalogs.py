"""Iceberg tables in a REST catalog: who may come in, what it offers, and answers that are lost.

`test_destination_whole_batches` has the contract of commits of several tables, over the same catalog.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from destination_rows import ORDERS, SOURCE, START, Lake, Row, apply, net, table, write
from penstock.destinations.contract import TableCommit, TableDestination, committing_whole_batches
from penstock.errors import CommitUnknown
from rest_catalogs import RestServer

LINES = table("order_lines", "id int8, amount int4, note text")
BOTH = (ORDERS, LINES)
SECRET, TOKEN = "client-secret-5f2b", "bearer-token-77c1"
TRANSACTION = "POST /v1/{prefix}/transactions/commit"


def opened(lake: Lake) -> TableDestination:
    driver = lake.driver()
    for one in BOTH:
        driver.ensure_table(one.table, one, SOURCE, START)
    return driver


def rows(amount: int) -> list[Row]:
    return [{"id": 1, "amount": amount, "note": ""}]


def commit(driver: TableDestination, amount: int) -> None:
    whole = committing_whole_batches(driver)
    assert whole is not None
    position = START + amount
    plans = [driver.plan(one.table, SOURCE) for one in BOTH]
    parts = [write(plan, net(one, rows(amount))) for plan, one in zip(plans, BOTH, strict=True)]
    whole.commit_batch([TableCommit(plan, part, False, position) for plan, part in zip(plans, parts, strict=True)])


def _transactions(server: RestServer) -> int:
    return sum(path.endswith("transactions/commit") for _, path in server.proxy.requests)


def _to(end: str) -> Callable[[str, str], bool]:
    return lambda method, path: method == "POST" and path.endswith(end)


def test_all_tables_of_a_batch_are_one_request(rest_lake: Lake, rest_server: RestServer) -> None:
    driver, before = opened(rest_lake), _transactions(rest_server)
    commit(driver, 1)
    assert _transactions(rest_server) == before + 1
    assert [rest_lake.rows(one) for one in BOTH] == [rows(1)] * 2


def commit_one(driver: TableDestination, amount: int) -> None:
    apply(driver, ORDERS, START + amount, net(ORDERS, rows(amount)))


@pytest.mark.parametrize(("end", "make"), [("transactions/commit", commit), ("tables/orders", commit_one)])
def test_a_lost_answer_is_resolved_by_the_position(
    rest_lake: Lake, rest_server: RestServer, end: str, make: Callable[[TableDestination, int], None]
) -> None:
    """The catalog has made the commit, and nobody is told: of all tables, and of one."""
    driver = opened(rest_lake)
    commit(driver, 1)
    rest_server.proxy.after = _to(end)
    try:
        with pytest.raises(CommitUnknown):
            make(driver, 2)
    finally:
        rest_server.proxy.after = None
    assert driver.position(ORDERS.table, SOURCE) == START + 2
    assert rest_lake.rows(ORDERS) == rows(2)
    commit(driver, 3)
    assert [rest_lake.rows(one) for one in BOTH] == [rows(3)] * 2


def test_where_the_catalog_does_not_offer_it_each_table_is_committed_by_itself(
    rest_lake: Lake, rest_server: RestServer
) -> None:
    def without(path: str, content: bytes) -> bytes:
        if not path.startswith("/v1/config"):
            return content
        told = json.loads(content)
        told["endpoints"].remove(TRANSACTION)
        return json.dumps(told).encode()

    rest_server.proxy.edit = without
    try:
        driver = opened(rest_lake)
    finally:
        rest_server.proxy.edit = None
    assert committing_whole_batches(driver) is None
    apply(driver, ORDERS, START + 1, net(ORDERS, rows(1)))
    assert rest_lake.rows(ORDERS) == rows(1)


@pytest.mark.parametrize("given", [{"token": TOKEN}, {"credential": f"penstock:{SECRET}", "scope": "lake"}])
def test_a_token_or_a_clients_credentials_are_passed_on(
    spark: SparkSession, rest_server: RestServer, tmp_path: Path, given: dict[str, str]
) -> None:
    rest_server.empty()
    proxy = rest_server.proxy
    proxy.authorizations.clear()
    before = len(proxy.requests)
    lake = rest_server.lake(spark, tmp_path, **given)
    commit(opened(lake), 1)
    shown = {one for one in proxy.authorizations if one}
    asked = [path for _, path in proxy.requests[before:] if path.endswith("oauth/tokens")]
    assert lake.rows(LINES) == rows(1)
    if "token" in given:
        assert (shown, asked) == ({f"Bearer {TOKEN}"}, [])
    else:
        (one,) = shown
        assert one.startswith("Bearer client-credentials-token")
        assert asked

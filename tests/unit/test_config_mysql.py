"""The section of a MySQL or MariaDB source: its URL, its names, and what streams it feeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.load import load
from penstock.config.mysql_source import MysqlSource
from penstock.errors import ConfigError

FILE = """
version: 1
name: shop
source: {{type: mysql, url: "{url}"}}
tables: [{{match: shop.*}}]
destinations: [{destination}]
"""
LAKE = "{type: iceberg, warehouse: lake}"


def loaded(folder: Path, url: str, destination: str = LAKE) -> MysqlSource:
    file = folder / "shop.yaml"
    file.write_text(FILE.format(url=url, destination=destination))
    source = load(file).source
    assert isinstance(source, MysqlSource)
    return source


def test_a_url_is_taken_apart(tmp_path: Path) -> None:
    source = loaded(tmp_path, "mysql://app:p%40ss@db:3307/shop?ssl-mode=VERIFY_CA&ssl-ca=ca.pem")
    address = source.address
    assert (address.host, address.port, address.user, address.password) == ("db", 3307, "app", "p@ss")
    assert (address.ssl_mode, address.ssl_ca) == ("VERIFY_CA", str(tmp_path / "ca.pem"))
    assert source.database == "shop"
    assert source.replica_id == loaded(tmp_path, "mysql://app:x@other/shop").replica_id >= 1_000_000


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://app@db/shop", "must be mysql://user"),
        ("mysql://db/shop", "names no user"),
        ("mysql://app:p@ss@db/shop", "percent-encoded"),
        ("mysql://app:secret@db:port/shop", "a port that is no number"),
        ("mysql://app@db/shop?ssl-mode=yes", "an ssl-mode that does not exist"),
        ("mysql://app@db/shop?charset=utf8", "an option that is not known"),
    ],
)
def test_a_wrong_url_is_refused_without_showing_it(tmp_path: Path, url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        loaded(tmp_path, url)
    assert "secret" not in str(refused.value)


def test_streams_take_rows_and_refuse_events_that_this_source_has_none_of(tmp_path: Path) -> None:
    source = loaded(tmp_path, "mysql://app@db/shop", "{type: stdout, envelope: debezium}")
    assert (source.connector, source.events_database) == ("mysql", "")
    assert loaded(tmp_path, "mariadb://app@db/shop").connector == "mariadb"
    with pytest.raises(ConfigError, match="must be left out: source shop is of type mysql"):
        loaded(tmp_path, "mysql://app@db/shop", "{type: stdout, transactions: true}")

"""How figures read, and that no password is among them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from penstock.control.text.figures import (
    bytes_text,
    count_text,
    moment_text,
    of_about_text,
    percent_text,
    rate_text,
    seconds_text,
)
from penstock.control.text.secrets import scrub


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (16 << 20, "16 MiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 70, "1048576 PiB"),
    ],
)
def test_bytes(number: int | None, text: str) -> None:
    assert bytes_text(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (86400, "1 d"),
        (356_400, "4 d 3 h"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


def test_counts_and_rates() -> None:
    assert count_text(1234567) == "1,234,567"
    assert rate_text(0) == "0/s"
    assert rate_text(0.25) == "0.2/s"
    assert rate_text(1234.5) == "1,234/s"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://app:hunter2@db:5432/shop",
        "postgresql://app:p@hunter2@db:5432/shop and more",
        "host=db password=hunter2 dbname=shop",
        "host=db password='hunter2 hunter2'",
        "postgresql://db/shop?user=app&password=hunter2&sslmode=require",
        "s3://key:hunter2@bucket/folder",
        '{"password": "hunter2"}',
        '{"s3.secret-access-key": "hunter2"}',
        "fs.s3a.secret.key=hunter2",
        "spark.sql.catalog.lake.token=hunter2",
        "{'type': 'rest', 'token': 'hunter2'}",
        "AWS_SECRET_ACCESS_KEY=hunter2",
        "fs.azure.account.key.shop.dfs.core.windows.net: hunter2",
        "{'credential': 'client:hunter2'}",
        "mask_salt: hunter2",
        "Authorization: Basic hunter2hunter2",
        "sent `Bearer hunter2.hunter2`",
        "the token pst_hunter2hunter2hunter2",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2",
    ],
)
def test_no_password_survives(text: str) -> None:
    assert "hunter2" not in scrub(text)
    assert "***" in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to Postgres at db:5432/shop: password authentication failed for user app",
        "https://iceberg.apache.org/docs and user@example.com",
        "source.password is missing; basic authentication needs it, bearer tokens do not",
    ],
)
def test_other_text_is_left_alone(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(None, "–"), (0.0, "0 %"), (0.456, "45 %"), (0.9999, "99 %"), (1.0, "100 %")]
)
def test_percents_are_rounded_down(fraction: float | None, text: str) -> None:
    assert percent_text(fraction) == text


@pytest.mark.parametrize(
    ("number", "estimate", "text"),
    [(900_000, 2_000_000, "900,000 of about 2,000,000"), (5, None, "5"), (7, 6, "7"), (0, 0, "0")],
)
def test_an_estimate_is_shown_while_it_says_something(number: int, estimate: int | None, text: str) -> None:
    assert of_about_text(number, estimate) == text


def test_moments_are_in_utc() -> None:
    assert moment_text(None) == "–"
    assert moment_text(datetime(2026, 5, 4, 14, 0, 3, tzinfo=timezone(timedelta(hours=2)))) == "2026-05-04 12:00:03 UTC"

"""The pages as the server renders them, over a state store filled by hand: every page for every role, no secret."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from penstock.server import pages
from pipeline_files import pipeline_file
from server_bench import server_bench

PAGES = {
    "/ui": "Pipelines",
    "/ui/pipelines/shop": "change log",
    "/ui/pipelines/shop/tables": "public.items",
    "/ui/pipelines/shop/tables/public.bad": "ALTER TABLE it",
    "/ui/pipelines/shop/messages": "too large",
    "/ui/pipelines/shop/map": "public.*",
    "/docs": "/pipelines/{name}/tables/{table}/resync",
}


def test_every_page_is_there_for_who_may_see_it(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, mask_salt="salt-of-the-earth")
    with server_bench(tmp_path, file) as bench:
        for path, text in PAGES.items():
            assert bench.clients[None].get(path).status_code in (303, 401)
            for role in ("viewer", "operator", "admin"):
                answer = bench.clients[role].get(path)
                if path.endswith("/map") and role == "viewer":
                    assert answer.status_code == 403
                    continue
                assert answer.status_code == 200, answer.text
                assert text in answer.text, path
                assert "hunter2" not in answer.text
                assert "salt-of-the-earth" not in answer.text
                offers = set(re.findall(r'data-(?:post|look)="([^"]+)"', answer.text))
                assert role != "viewer" or not offers, "a viewer is offered nothing that he may not do"
        assert bench.clients["viewer"].get("/ui/pipelines/shop/tables/public.none").status_code == 404


def test_actions_that_pages_offer_are_routes(tmp_path: Path) -> None:
    with server_bench(tmp_path, pipeline_file(tmp_path)) as bench:
        known = [re.sub(r"\{\w+\}", "[^/]+", path) for path in bench.app.openapi()["paths"]]
        for path in PAGES:
            page = bench.clients["admin"].get(path).text
            for offered in re.findall(r'data-(?:post|look|from)="([^"?]+)', page):
                assert any(re.fullmatch(pattern, offered) for pattern in known), offered


@pytest.mark.parametrize("name", ["page.js", "style.css", "uplot.min.js", "uplot.min.css", "uplot.LICENSE.txt"])
def test_scripts_and_styles_are_our_own(tmp_path: Path, name: str) -> None:
    with server_bench(tmp_path, pipeline_file(tmp_path)) as bench:
        answer = bench.clients[None].get(f"/static/{name}")
        assert answer.status_code == 200
        assert "http://" not in answer.text.replace("http://www.w3.org", "")
        assert bench.clients[None].get("/static/../tokens.py").status_code != 200


def test_a_table_is_read_and_verified_where_it_has_rows(tmp_path: Path) -> None:
    """In the SQL of that destination, and at one that is named: the page has no other to choose by itself."""
    copy = {"name": "lake", "type": "postgres", "url": "postgresql://u@127.0.0.1:1/x"}
    hook = {"name": "hook", "type": "http", "url": "https://h/x"}
    with server_bench(tmp_path, pipeline_file(tmp_path, destinations=[copy, hook])) as bench:
        text = html.unescape(bench.clients["operator"].get("/ui/pipelines/shop/tables/public.orders").text)
    assert 'data-sql="select * from "public"."orders" limit 20"' in text
    assert re.findall(r'data-verify [^>]*data-destination="(\w+)"', text) == ["lake"]
    assert [pages.quoted('a"`b', kind) for kind in ("duckdb", "iceberg")] == ['"a""`b"', '`a"``b`']

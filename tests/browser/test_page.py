"""A person at the page, in Chromium, over a real server with a real pipeline; the server is killed on the way.

`PENSTOCK_SCREENSHOTS=folder` keeps pictures of the pages, for the documents.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from databases import Database
from penstock.state.lock import holder
from running import PipelineFactory, PipelineFile, Running

ROOT = Path(__file__).parents[2]
SLOW = 60_000  # milliseconds: Spark starts twice


@pytest.fixture
def chromium() -> str:
    found = subprocess.run([str(ROOT / "scripts" / "debian_chromium.sh")], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(SLOW)
        expect.set_options(timeout=SLOW)
        yield page
        browser.close()


def serving(pipeline: PipelineFile, listen: str = "127.0.0.1:0") -> tuple[Running, str]:
    """A server over the pipeline's file, and where it listens."""
    server = Running(pipeline, ("serve", "FILE", "--edit", "--listen", listen))
    server.await_text("listening", 60)
    found = re.search(r"http://[\d.:]+", server.text())
    assert found is not None
    return server, found[0]


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("PENSTOCK_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_a_person_signs_in_adds_a_table_pauses_and_verifies(
    pipeline: PipelineFactory, postgres: Database, page: Page
) -> None:
    postgres.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE people (id int PRIMARY KEY, name text)",
        "INSERT INTO orders SELECT n, 'note ' || n FROM generate_series(1, 50) n",
        "INSERT INTO people VALUES (1, 'Ada')",
    )
    made = pipeline(tables=[{"match": "public.orders"}])
    server, url = serving(made)
    servers = [server]
    try:
        token = re.search(r"pst_\S+", server.text())
        assert token is not None
        page.goto(url)
        page.get_by_label("Token").fill("pst_wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("This token is not known here.")).to_be_visible()
        page.get_by_label("Token").fill(token[0])
        page.keyboard.press("Enter")
        expect(page.get_by_text("1 Ready")).to_be_visible()

        page.goto(f"{url}/ui/pipelines/{made.name}/map")
        page.get_by_label("follow public.people").check()
        expect(page.locator("#yaml")).to_contain_text("match: public.people")
        picture(page, "map")
        page.locator("#save").click()
        expect(page.get_by_text("Saved, and the pipeline is started again")).to_be_visible()
        page.goto(f"{url}/ui/pipelines/{made.name}/tables")
        row = page.locator("tr[data-name='public.people']")
        expect(row.get_by_text("Ready")).to_be_visible()
        picture(page, "tables")

        page.goto(f"{url}/ui/pipelines/{made.name}")
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.get_by_text("the pipeline is paused since")).to_be_visible()
        pid = holder(made.home / "lock")
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        postgres.execute("INSERT INTO orders VALUES (51, 'while it was paused')")
        again, same = serving(made, url.removeprefix("http://"))
        servers.append(again)
        assert same == url
        assert holder(made.home / "lock") == pid, "a server that is killed takes no pipeline with it"
        page.reload()
        expect(page.get_by_text("the pipeline is paused since")).to_be_visible()
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(page.get_by_text("the pipeline is paused since")).to_have_count(0)
        page.get_by_role("button", name="Wait for delivery").click()
        expect(page.get_by_text("Everything that the source had written is delivered")).to_be_visible()
        page.wait_for_timeout(3000 if os.environ.get("PENSTOCK_SCREENSHOTS") else 0)
        picture(page, "pipeline")

        page.goto(f"{url}/ui/pipelines/{made.name}/tables/public.orders")
        page.get_by_role("button", name="Verify").click()
        expect(page.get_by_text("public.orders: equal")).to_be_visible()
        picture(page, "table")
        again.stop()
        assert holder(made.home / "lock") is None, "a server that is stopped drains its pipelines"
    finally:
        for one in servers:
            one.clean_up()

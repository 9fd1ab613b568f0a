"""A person at the page, in Chromium, over a real server with a real pipeline; the server is killed on the way.

Tables go into a Postgres database, which needs no Spark, and with `--full` into Iceberg.
`PENSTOCK_SCREENSHOTS=folder` keeps pictures of the pages, for the documents: wide and as on a phone, light and dark.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright
from pyiceberg.catalog.sql import SqlCatalog

from damaged_log import damage
from databases import Database, fresh_database
from penstock.demo.server import PostgresServer
from penstock.state.lock import holder
from running import PipelineFactory, PipelineFile, Running, await_condition

ROOT = Path(__file__).parents[2]
SLOW = 240_000  # milliseconds: on a busy machine a second Spark takes minutes to start
WIDE, PHONE = ViewportSize(width=1280, height=900), ViewportSize(width=390, height=844)


@pytest.fixture
def chromium() -> str:
    found = subprocess.run([str(ROOT / "scripts" / "debian_chromium.sh")], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=WIDE)
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
    if not folder:
        return
    page.evaluate(
        "document.querySelectorAll('.dim').forEach((one) => { if (/^[/]/.test(one.textContent))"
        " one.textContent = '/etc/penstock/' + one.textContent.split('/').pop(); })"
    )
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for kind, size in (("wide", WIDE), ("phone", PHONE)):
            page.set_viewport_size(size)
            page.wait_for_timeout(300)
            page.screenshot(path=Path(folder) / f"{name}-{kind}-{scheme}.png")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(WIDE)


def plant(file: PipelineFile, copy: Database | None) -> None:
    """Delete row 7 of public.orders in the destination, as another program may."""
    if copy is not None:
        copy.execute("DELETE FROM public.orders WHERE id = 7")
        return
    uri = f"sqlite:///{file.warehouse}/catalog.db"
    with closing(SqlCatalog("lake", uri=uri, warehouse=str(file.warehouse))) as catalog:
        catalog.load_table("public.orders").delete("id == 7")


def gives_a_message_up(page: Page, url: str, made: PipelineFile, database: Database) -> None:
    """A message that cannot be decoded: seen, looked at, tried again, given up; its table is copied again."""
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{url}/ui/pipelines/{made.name}")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_visible()
    await_condition(lambda: holder(made.home / "lock") is None, "the run's end", 60)
    damage(made, database)
    page.get_by_role("button", name="Start", exact=True).click()
    page.goto(f"{url}/ui/pipelines/{made.name}/messages")
    message = page.locator("#quarantine tr", has_text="public.orders")
    expect(message).to_be_visible()
    message.get_by_role("button", name="Look").click()
    expect(page.get_by_text("id (int4): '9'").first).to_be_visible()
    picture(page, "quarantine")
    message.get_by_role("button", name="Replay").click()
    expect(page.get_by_text("it is still not decodable")).to_be_visible()
    message.get_by_role("button", name="Drop").click()
    expect(page.get_by_text("Nothing is in quarantine.")).to_be_visible()


@pytest.fixture
def copy(embedded_server: PostgresServer, full: bool) -> Iterator[Database | None]:
    """The database that tables go into; None: into a lake."""
    if full:
        yield None
        return
    with fresh_database(embedded_server) as database:
        yield database


def test_a_person_operates_a_pipeline(
    pipeline: PipelineFactory, postgres: Database, copy: Database | None, page: Page
) -> None:
    elsewhere = {} if copy is None else {"destinations": [{"name": "lake", "type": "postgres", "url": copy.url}]}
    postgres.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE people (id int PRIMARY KEY, name text)",
        "INSERT INTO orders SELECT n, 'note ' || n FROM generate_series(1, 50) n",
        "INSERT INTO people VALUES (1, 'Ada')",
    )
    made = pipeline(
        tables=[{"match": "public.orders"}],
        log={"replay": "1h"},
        mask_salt="salt",
        copy={"discover_every": "1s"},
        **elsewhere,
    )
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
        picture(page, "overview")

        page.goto(f"{url}/ui/pipelines/{made.name}/map")
        page.get_by_label("follow public.people").check()
        expect(page.locator("#yaml")).to_contain_text("match: public.people")
        page.locator("summary", has_text="public.people").click()
        page.get_by_label("what becomes of column name").select_option("mask")
        expect(page.locator("#yaml")).to_contain_text("columns: {name: mask}")
        page.get_by_role("button", name="Preview rows of public.people").click()
        expect(page.get_by_text("As they would arrive: 1 row of the source")).to_be_visible()
        expect(page.locator(".preview td", has_text=hashlib.sha256(b"saltAda").hexdigest())).to_be_visible()
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
        picture(page, "table")
        plant(made, copy)
        page.get_by_role("button", name="Verify").click()
        expect(page.get_by_text("public.orders: differs")).to_be_visible()
        expect(page.locator("#verified tbody tr")).to_have_text(["7is missing in the destination"])
        picture(page, "difference")
        page.get_by_role("button", name="Repair these rows").click()
        expect(page.get_by_text("public.orders: equal after the repair")).to_be_visible()

        gives_a_message_up(page, url, made, postgres)
        postgres.execute("DROP TABLE people")
        page.goto(f"{url}/ui/pipelines/{made.name}/tables")
        expect(page.locator("tr[data-name='public.orders']").get_by_text("Ready")).to_be_visible()
        gone = page.locator("tr[data-name='public.people']")
        expect(gone.get_by_text("Errored")).to_be_visible()
        gone.get_by_role("link").click()
        expect(page.get_by_text("is no longer at the source")).to_be_visible()
        assert page.locator(".trouble em").inner_text(), "every error says its way out"
        picture(page, "errored")
        page.get_by_role("button", name="Forget").click()
        expect(page.locator("tr[data-name='public.orders']").get_by_text("Ready")).to_be_visible()
        expect(page.locator("tr[data-name='public.people']")).to_have_count(0)
        again.stop()
        assert holder(made.home / "lock") is None, "a server that is stopped drains its pipelines"
    finally:
        for one in servers:
            one.clean_up()

"""What lives in several tabs at once, and through a restart of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect, start_server, stop_server
from hopyard.config.home import Home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell
from tests.web.conftest import BUILT
from tests.web.run_scripts import LIVE
from tests.web.visit import CHROMIUM, Visit

TABS = 8  # more than a browser has connections for one server


def phase(page: Page, word: str) -> Locator:
    return page.locator("span").filter(has_text=re.compile(f"^{word}$"))


def own_streams(visit: Visit) -> list[str]:
    """Returns a list of the streams of events that tabs open from now on; those of workers are not in it."""
    streams: list[str] = []
    visit.page.context.on(
        "request", lambda request: streams.append(request.url) if "/api/v1/events" in request.url else None
    )
    return streams


def test_eight_tabs_live_from_one_stream(visit: Visit, web_shell: Shell, web_client: Client) -> None:
    web_shell.write("live.py", LIVE)
    name = web_shell.detach("-n", "in-tabs", "live.py")
    context, streams = visit.page.context, own_streams(visit)
    pages = [visit.open(f"/runs/{name}"), *(context.new_page() for _ in range(TABS - 1))]
    for page in pages[1:]:
        page.goto(f"/runs/{name}")
    for page in pages:
        expect(phase(page, "running")).to_be_visible()
    assert streams == []  # no tab has one of its own

    # the tab that opened the stream goes, and those that remain live on
    pages[0].close()
    run = web_client.resolve_run(ref=name)
    web_client.update_run(run["id"], {"note": "seen by all tabs"})
    for page in pages[1:]:
        expect(page.get_by_text("seen by all tabs")).to_be_visible()
    web_shell.hop("stop", name)
    for page in pages[1:]:
        expect(phase(page, "cancelled")).to_be_visible()


def test_stream_of_a_browser_without_shared_workers(visit: Visit, web_shell: Shell) -> None:
    visit.page.add_init_script("delete window.SharedWorker")
    web_shell.write("live.py", LIVE)
    streams = own_streams(visit)
    page = visit.open("/runs?filter=alone")
    expect(page.get_by_text("No run matches the filter")).to_be_visible()
    name = web_shell.detach("-n", "alone", "live.py")
    expect(page.get_by_role("link", name="alone")).to_be_visible()
    assert len(streams) == 1
    web_shell.hop("stop", name)
    expect(page.locator("[role=row][id^='run-']")).to_contain_text(["cancelled"])


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Home]:
    """A server that the test may restart, at an address that stays."""
    if CHROMIUM is None or not BUILT.exists():
        pytest.skip("needs chromium and the built web UI")
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.settings_file.write_text("node: {id: box, cpus: 4, memory: 8G}\n")
    url = start_server(home).url
    port = url.rsplit(":", 1)[1]
    home.settings_file.write_text(f"node: {{id: box, cpus: 4, memory: 8G}}\nserver: {{port: {port}}}\n")
    yield home
    start_server(home)  # a test that failed may have left it stopped, with its run alive
    stop_server(home, runs="stop")


def test_page_continues_when_the_server_restarts(own_home: Home, browser: Browser, tmp_path: Path) -> None:
    shell = shell_in(tmp_path / "code", own_home.root)
    shell.write("live.py", LIVE)
    name = shell.detach("-n", "through-restart", "live.py")
    visit = Visit(browser, connect(start=False, home=own_home).url)
    visit.allow("status of 401|status of 50[0-9]|ERR_|net::|Failed to load")
    page = visit.open(shell.hop("ui", "--print").text.strip())
    page.get_by_role("navigation", name="pages").wait_for()
    page.goto(f"/runs/{name}?tab=log")
    log = page.get_by_role("log")
    expect(log.get_by_text("with lr 0.1").last).to_be_visible()

    stop_server(own_home, runs="keep")
    expect(page.get_by_role("alert").first).to_contain_text("does not answer")
    expect(page.get_by_role("heading", name="through-restart")).to_be_visible()
    page.get_by_role("link", name="Curves").click()  # a part that is loaded only now

    start_server(own_home)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("heading", name="loss")).to_be_visible()
    page.get_by_role("link", name="Log", exact=True).click()
    shell.hop("set", name, "lr=0.05")
    expect(page.get_by_role("log").get_by_text("with lr 0.05").last).to_be_visible()
    shell.hop("stop", name)
    expect(phase(page, "cancelled")).to_be_visible()
    visit.close()

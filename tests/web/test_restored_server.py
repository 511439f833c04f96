"""Pages that are open while their server is replaced by one that a backup restored."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from hopyard.api_client.local_server import connect, start_server, stop_server
from hopyard.backup.create import create_backup
from hopyard.backup.restore import restore_backup
from hopyard.config.home import Home
from tests.cli.shell import wait_until
from tests.web.conftest import BUILT
from tests.web.visit import CHROMIUM, Visit


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_report_that_is_newer_than_the_backup_is_not_lost(browser: Browser, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    if not BUILT.exists():
        pytest.skip("the web UI is not built: run `make web`")
    home, second, folder = Home(tmp_path / "home"), Home(tmp_path / "second"), tmp_path / "backup"
    settings = f"server: {{port: {unused_port()}}}\nnode: {{id: box, cpus: 4, memory: 8G}}\n"
    home.create().settings_file.write_text(settings)
    visit = None
    try:
        start_server(home)
        client = connect(start=False, home=home)
        report = client.create_report({"title": "at the backup", "access": "write", "blocks": []})
        visit = Visit(browser, client.url)
        visit.allow("status of (401|409)")
        visit.allow("ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE")
        page = visit.open(f"/reports/{report['id']}?edit=1")
        page.get_by_label("Token").fill(home.token_file.read_text().strip())
        page.get_by_role("button", name="Log in").click()
        title = page.get_by_role("textbox", name="Title").first
        expect(title).to_have_value("at the backup")
        create_backup(home, folder)
        title.fill("after the backup")
        wait_until(lambda: client.get_report(report["id"])["title"] == "after the backup")
        views = page.context.new_page()
        views.goto("/runs")
        expect(views.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        stop_server(home, runs="stop")

        restore_backup(folder, second)
        start_server(second)
        restored = connect(start=False, home=second)
        assert restored.get_report(report["id"])["title"] == "at the backup"
        alert = page.get_by_role("alert").filter(has_text="restored from a backup")
        expect(alert).to_be_visible()
        page.get_by_role("button", name="Keep mine").click()
        wait_until(lambda: restored.get_report(report["id"])["title"] == "after the backup")
        restored.put_view("new", {"view": {"page": "runs", "search": "show=starred"}})
        expect(views.get_by_role("button", name="new", exact=True)).to_be_visible()
    finally:
        if visit is not None:
            visit.close()
        stop_server(home, runs="stop")
        stop_server(second, runs="stop")

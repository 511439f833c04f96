"""Logging in to the web UI."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Browser, expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit


def test_link_logs_in_once(
    web_shell: Shell, web_client: Client, browser: Browser, session_state: Any
) -> None:
    link = web_shell.hop("ui", "--print").text.strip()
    for expected in ("navigation", "alert"):
        visit = Visit(browser, web_client.url)
        visit.allow("status of 40[0-9]")
        page = visit.open(link)
        page.get_by_role(expected).first.wait_for()
        assert "link=" not in page.url
        visit.close()


def test_pasted_token_logs_in_and_log_out_ends_the_session(
    web_shell: Shell, web_client: Client, browser: Browser
) -> None:
    token = web_shell.hop("token", "create", "browser").text.strip()
    visit = Visit(browser, web_client.url)
    visit.allow("status of 401")
    page = visit.open("/runs")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").wait_for()
    page.reload()
    page.get_by_label("Token").wait_for()
    visit.close()


def test_theme_is_kept(open_visit: OpenVisit) -> None:
    visit = open_visit(size=NARROW, theme="dark")
    page = visit.open("/runs")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", re.compile("light"))

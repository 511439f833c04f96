"""Logging in to the web UI."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import Browser, expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit

LOG_IN = """async (token) => await fetch("/api/v1/session", {
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({token}),
})"""


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


def test_ended_session_keeps_what_was_typed(web_shell: Shell, web_client: Client, browser: Browser) -> None:
    ends, stays = (web_shell.hop("token", "create", name).text.strip() for name in ("ends", "stays"))
    visit = Visit(browser, web_client.url)
    visit.allow("status of 40[13]")
    page = visit.open("/runs")
    page.get_by_label("Token").fill(ends)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="New run", exact=True).click()
    page.get_by_label("Name", exact=True).fill("half typed")
    web_shell.hop("token", "revoke", "ends")
    again = page.get_by_role("dialog", name="log in again")
    again.get_by_label("Token").fill(stays)
    again.get_by_role("button", name="Log in").click()
    expect(again).to_have_count(0)
    expect(page.get_by_label("Name", exact=True)).to_have_value("half typed")
    page.evaluate(LOG_IN, stays)  # as another tab of the browser does
    page.get_by_role("link", name="Reports").click()
    page.get_by_role("button", name="New report").click()
    page.wait_for_url("**/reports/*")
    visit.close()


def test_wrong_clock_of_the_browser_changes_no_ages(visit: Visit, web_runs: list[str]) -> None:
    visit.page.clock.set_fixed_time(datetime.now(UTC) + timedelta(hours=30))
    page = visit.open("/runs?filter=project+%3D+baselines")
    expect(page.get_by_role("link", name="root/baselines/1")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^(just now|\d+m ago)$")).first).to_be_visible()
    assert page.get_by_text(re.compile(r"^1d ago$")).count() == 0


def test_theme_is_kept(open_visit: OpenVisit) -> None:
    visit = open_visit(size=NARROW, theme="dark")
    page = visit.open("/runs")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", re.compile("light"))

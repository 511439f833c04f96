"""The settings of a user, and the inbox of alerts and ended runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit

HOSTILE = "<img src=x onerror=window.ran=1>"


def log_in(browser: Browser, url: str, token: str) -> Visit:
    visit = Visit(browser, url)
    visit.allow("status of 401")
    page = visit.open("/login")
    page.get_by_label("token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_role("navigation", name="pages").wait_for()
    return visit


def test_token_is_made_used_rotated_and_revoked(
    visit: Visit, browser: Browser, web_client: Client, web_runs: list[str]
) -> None:
    page = visit.open("/settings")
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("laptop")
    dialog.get_by_label("Scope").select_option("read")
    dialog.get_by_label("Valid for").select_option("7 days")
    dialog.get_by_role("button", name="Create").click()
    secret = page.get_by_label("the new token").inner_text()
    page.keyboard.press("Escape")  # the token is not lost by a key
    expect(page.get_by_label("the new token")).to_be_visible()
    page.get_by_role("button", name="I have copied it").click()
    row = page.get_by_role("row").filter(has_text="laptop")
    expect(row).to_contain_text("read")
    assert secret not in page.content()

    # a session that may only read is not offered what it may not do
    reader = log_in(browser, web_client.url, secret)
    other = reader.open("/settings")
    expect(other.get_by_text("cannot manage tokens")).to_be_visible()
    assert other.get_by_role("button", name="New token").count() == 0

    for path, name in (
        ("/runs", "star"),
        ("/reports", "New report"),
        ("/cluster?tab=nodes&node=box", "Drain…"),
        ("/cluster?tab=reservations", "Reserve…"),
    ):
        other.goto(path)
        button = other.get_by_role("button", name=name).first
        expect(button).to_be_disabled()
        expect(button).to_have_attribute("title", re.compile("scope|owner"))

    # the list of sessions logs that browser out
    page.reload()
    session = page.get_by_role("region", name="sessions").get_by_role("row")
    expect(session.filter(has_text="this browser")).to_contain_text("Chrome on Linux")
    page.get_by_role("button", name="log out Chrome on Linux of laptop").click()
    page.get_by_role("dialog").get_by_role("button", name="Log out").click()
    expect(session.filter(has_text="laptop")).to_have_count(0)
    other.goto("/runs")
    other.get_by_label("token").fill(secret)
    other.keyboard.press("Enter")
    other.get_by_role("navigation", name="pages").wait_for()

    page.get_by_role("button", name="rotate laptop").click()
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    assert page.get_by_label("the new token").inner_text() != secret
    page.get_by_role("button", name="I have copied it").click()
    other.goto("/runs")
    expect(other.get_by_label("token")).to_be_visible()  # logged out with its token
    reader.close()
    page.get_by_role("button", name="revoke laptop").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("row").filter(has_text="laptop")).to_have_count(0)


def test_owner_adds_a_user_who_sees_runs_of_others_without_buttons(
    visit: Visit, browser: Browser, web_client: Client, web_runs: list[str]
) -> None:
    page = visit.open("/settings")
    page.get_by_role("button", name="Add a user").click()
    page.get_by_role("dialog").get_by_role("textbox", name="Name").fill("bob")
    page.get_by_role("dialog").get_by_role("button", name="Add", exact=True).click()
    token = page.get_by_label("the new token").inner_text()
    page.get_by_role("button", name="I have copied it").click()
    expect(page.get_by_role("row").filter(has_text="bob")).to_be_visible()

    bob = log_in(browser, web_client.url, token)
    other = bob.open(f"/runs/{web_runs[0]}")
    expect(other.get_by_text("View only")).to_be_visible()
    other.get_by_role("button", name="more actions").click()
    expect(other.get_by_text("Fork it to change a copy")).to_be_visible()
    assert other.get_by_role("menuitem", name="Delete").count() == 0
    other.goto("/settings")
    expect(other.get_by_text("User: starts runs")).to_be_visible()
    assert other.get_by_role("region", name="users").count() == 0
    bob.close()

    page.get_by_role("button", name="remove bob").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove the user").click()
    expect(page.get_by_role("row").filter(has_text="bob")).to_have_count(0)


def test_alert_appears_unread_and_is_read_in_another_browser(
    open_visit: OpenVisit, web_shell: Shell, web_client: Client, web_runs: list[str]
) -> None:
    page, elsewhere = open_visit().open("/inbox"), open_visit().open("/runs")
    run: dict[str, Any] = web_client.resolve_run(ref=web_runs[0])
    web_shell.hop("alert", HOSTILE, "--title", "odd", "--level", "error", "--run", run["name"])
    entry = page.get_by_role("listitem").filter(has_text="odd").filter(has_text=HOSTILE)
    expect(entry.get_by_role("img", name="unread")).to_be_visible()
    expect(elsewhere.get_by_role("link", name=re.compile("Inbox .* unread"))).to_be_visible()
    assert page.evaluate("window.ran") is None
    expect(page.get_by_role("listitem").filter(has_text="broken").first).to_contain_text("failed")

    page.get_by_role("button", name="Mark all as read").click()
    expect(page.get_by_text("All is read")).to_be_visible()
    elsewhere.reload()
    expect(elsewhere.get_by_role("link", name="Inbox", exact=True)).to_be_visible()
    assert web_shell.hop("inbox", "--unread", "--json").json == []
    entry.get_by_role("link").click()
    page.wait_for_url(f"**/runs/{run['id']}")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_settings_and_inbox_are_accessible(
    axe: None, open_visit: OpenVisit, web_runs: list[str], theme: str
) -> None:
    visit = open_visit(size=NARROW, theme=theme)
    for path in ("/settings", "/inbox"):
        page = visit.open(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_label("loading")).to_have_count(0)
        assert visit.findings() == [], path
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= NARROW[0], f"{path} is {width} pixels wide"

"""The table of runs: filter, order, columns, keyboard, actions, live states."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, WIDE, Visit

HOSTILE = '<img src=x onerror="document.title=1">'


def rows(page: Page) -> Locator:
    return page.locator("[role=row][id^='run-']")


def labels(page: Page) -> list[str]:
    return [text.split()[0] for text in rows(page).locator("a").all_inner_texts()]


def filter_by(page: Page, text: str) -> None:
    page.get_by_label("filter", exact=True).fill(text)


def test_words_and_queries_filter_and_the_address_keeps_them(visit: Visit, web_runs: list[str]) -> None:
    visit.allow("status of 400")
    page = visit.open("/runs")
    expect(page.get_by_role("link", name=re.compile("^baseline"))).to_be_visible()
    filter_by(page, "val_acc > 0.95 and project = baselines and tags.team = vision")
    expect(rows(page).locator("a")).to_have_text([re.compile("^slow")])
    page.reload()
    expect(rows(page).locator("a")).to_have_text([re.compile("^slow")])
    filter_by(page, "broken")
    expect(rows(page).locator("a")).to_have_text([re.compile("^broken")])
    filter_by(page, "val_acc >")
    expect(page.get_by_role("alert")).to_contain_text("where")
    filter_by(page, "params.lr = 17")
    expect(page.get_by_text("No run matches the filter")).to_be_visible()


def test_head_sorts_group_counts_and_columns_are_chosen(visit: Visit, web_runs: list[str]) -> None:
    page = visit.open(
        "/runs?filter=val_acc+%3E+0+and+project+%3D+baselines&column=name&column=metrics.val_acc&column=tags.team"
    )
    page.get_by_role("button", name="val_acc").click()
    expect(page.get_by_role("columnheader", name="val_acc")).to_have_attribute("aria-sort", "descending")
    expect(rows(page).locator("a")).to_have_text([re.compile(name) for name in ("slow", "baseline", "fast")])
    page.get_by_label("Group").select_option("tags.team")
    expect(page.get_by_text("2 runs")).to_be_visible()
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("find a column").fill("params.lr")
    page.get_by_role("checkbox", name="params.lr").check()
    expect(page.get_by_role("columnheader", name="lr")).to_be_visible()
    assert "column=params.lr" in page.url


def test_keyboard_selects_and_compares_and_opens(visit: Visit, web_runs: list[str]) -> None:
    page = visit.open("/runs?filter=val_acc+%3E+0+and+project+%3D+baselines")
    expect(rows(page)).to_have_count(3)
    for key in ("j", "x", "j", "Shift+ArrowDown"):
        page.keyboard.press(key)
    expect(page.get_by_text("3 selected")).to_be_visible()
    page.keyboard.press("c")
    page.wait_for_url("**/compare?**")
    assert len(parse_qs(urlsplit(page.url).query)["run"]) == 3
    page.go_back()
    expect(rows(page)).to_have_count(3)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Compare the selected runs")
    expect(page.get_by_role("dialog").locator(":focus")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.get_by_placeholder("Type the name").fill("baseline")
    expect(page.get_by_role("option", name=re.compile("^baseline"))).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/runs/[0-9a-z]{20}"))


def test_palette_says_that_nothing_is_found_only_after_an_answer(visit: Visit, web_runs: list[str]) -> None:
    visit.allow("Failed to load resource")  # the first requests, as when a network appears
    page = visit.open("/runs")
    expect(rows(page).first).to_be_visible()
    lost: list[Route] = []

    def lose(route: Route) -> None:
        if len(lost) < 2:
            lost.append(route)
        else:
            route.continue_()

    page.route(re.compile(r"/api/v1/runs\?.*text="), lose)
    page.keyboard.press("Control+k")
    search, palette = page.get_by_placeholder("Type the name"), page.get_by_role("dialog", name="commands")
    with page.expect_request(re.compile("text=team")):
        search.fill("team=vis")
    expect(palette.get_by_role("status")).to_have_text("Searching…")
    with page.expect_request(re.compile("text=team")):  # the request is sent again
        lost[0].abort()
    expect(palette.get_by_role("status")).to_have_text("Searching…")
    lost[1].abort()
    expect(palette.get_by_role("option", name=re.compile("^baseline"))).to_be_visible()
    search.fill("team=vision")  # found by a tag, which no name contains
    expect(palette.get_by_role("option", name=re.compile("^baseline"))).to_be_visible()
    search.fill("no run has this name")
    expect(palette.get_by_role("status")).to_have_text("Nothing is called that.")
    search.fill("settings")
    expect(palette.get_by_role("option", selected=True)).to_contain_text("Settings")
    page.keyboard.press("Enter")
    page.wait_for_url("**/settings")


def test_note_tags_star_and_archive_of_a_run_with_hostile_words(
    visit: Visit, web_shell: Shell, web_client: Client
) -> None:
    name = web_shell.detach("-n", "marked", "-p", f"words={HOSTILE}", "train.py")
    web_shell.hop("logs", "--follow", name)
    page = visit.open("/runs?filter=marked")
    page.get_by_role("button", name=f"star {name}").click()
    expect(page.get_by_role("button", name=f"star {name}")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("j")
    page.keyboard.press("e")
    page.get_by_role("textbox", name="Note").fill(HOSTILE)
    page.get_by_role("textbox", name="Tags").fill(
        f'team=vision "{HOSTILE.replace(chr(34), chr(92) + chr(34))}"'
    )
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("team=vision")).to_be_visible()
    assert page.get_by_text(HOSTILE).count() > 0
    assert page.title() != "1"
    page.keyboard.press("x")
    page.get_by_role("button", name="Archive", exact=True).click()
    page.get_by_role("button", name="Archive 1 run").click()
    expect(page.get_by_text("No run matches the filter")).to_be_visible()
    page.get_by_label("Show").select_option("archived")
    expect(rows(page)).to_have_count(1)
    page.get_by_role("checkbox").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text("This frees about")
    page.get_by_role("button", name="Delete 1 run").click()
    expect(rows(page)).to_have_count(0)


def test_live_run_appears_and_is_stopped(visit: Visit, web_shell: Shell) -> None:
    page = visit.open("/runs?filter=sleeper")
    expect(page.get_by_text("No run matches the filter")).to_be_visible()
    web_shell.write("sleep.py", "import time\ntime.sleep(3600)\n")
    web_shell.detach("-n", "sleeper", "sleep.py")
    expect(rows(page)).to_contain_text(["running"])
    page.get_by_role("checkbox").click()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("1 run will stop")
    page.get_by_role("button", name="Stop 1 run").click()
    expect(rows(page)).to_contain_text([re.compile("failed|cancelled")])


def test_view_is_kept_as_a_tab_and_a_lost_change_is_a_choice(
    visit: Visit, web_client: Client, web_runs: list[str]
) -> None:
    page = visit.open("/runs?filter=val_acc+%3E+0.95+and+project+%3D+baselines")
    page.get_by_role("button", name="Save view").click()
    page.get_by_label("Name of the view").fill("good")
    page.get_by_role("button", name="Save", exact=True).click()
    visit.open("/runs")
    page.get_by_role("button", name="good", exact=True).click()
    expect(rows(page)).to_have_count(1)

    # another browser changes it
    theirs = {"page": "runs", "search": "filter=project+%3D+none"}
    web_client.put_view("good", {"view": theirs, "shared": True})
    page.get_by_role("button", name="change the view good").click()
    dialog = page.get_by_role("dialog")
    visit.allow("status of 40[49]")
    dialog.get_by_role("checkbox").check()
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("changed this view meanwhile")
    assert web_client.get_view("good")["view"] == theirs
    dialog.get_by_role("button", name="Load theirs").click()
    expect(page).to_have_url(re.compile("project.*none"))
    web_client.delete_view("good")
    page.get_by_role("button", name="change the view good").click()
    dialog.get_by_role("checkbox").uncheck()
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("removed this view meanwhile")
    dialog.get_by_role("button", name="Keep mine").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert web_client.get_view("good")["shared"] is False


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.usefixtures("axe")
def test_table_is_accessible(open_visit: OpenVisit, web_runs: list[str], theme: str) -> None:
    for size in (WIDE, NARROW):
        visit = open_visit(size=size, theme=theme)
        page = visit.open("/runs")
        expect(page.get_by_role("link", name=re.compile("^baseline"))).to_be_visible()
        assert visit.findings() == []
        page.get_by_role("checkbox").first.click()
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").wait_for()
        assert visit.findings() == []


def test_empty_table_leads_to_a_new_run(visit: Visit) -> None:
    visit.page.route(
        re.compile(r"/api/v1/runs\?"), lambda route: route.fulfill(json={"runs": [], "next": None})
    )
    page = visit.open("/runs")
    expect(page.get_by_text("No runs yet")).to_be_visible()
    page.get_by_role("link", name="new run", exact=True).click()
    expect(page.get_by_role("heading", name="New run")).to_be_visible()

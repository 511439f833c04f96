"""The page of a run, on real runs in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.run_scripts import HOSTILE, LIVE
from tests.web.visit import NARROW, Visit

ATTACK = "<img src=x onerror=window.ran=1><script>window.ran=1</script>"


@pytest.fixture(scope="module")
def hostile_run(web_shell: Shell) -> str:
    """The name of an ended run with script in its output, metrics, media and files."""
    web_shell.write("hostile.py", HOSTILE)
    name = web_shell.detach("-n", "hostile", "--tag", f"evil={ATTACK}", "hostile.py")
    web_shell.hop("logs", "--follow", name)
    return name


@pytest.fixture
def live_run(web_shell: Shell) -> Iterator[str]:
    web_shell.write("live.py", LIVE)
    name = web_shell.detach("-n", "live", "live.py")
    yield name
    web_shell.hop("stop", name)


def open_tab(visit: Visit, name: str, tab: str) -> Page:
    page = visit.open(f"/runs/{name}?tab={tab}")
    page.get_by_role("navigation", name="parts of the run").wait_for()
    return page


def test_live_run_is_paused_set_and_resumed(visit: Visit, live_run: str) -> None:
    page = open_tab(visit, live_run, "log")
    page.get_by_text("with lr 0.1").last.wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused", exact=True)).to_be_visible()

    page.get_by_role("button", name="Set a parameter").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Parameter").select_option("lr")
    dialog.get_by_label("Value").fill("0.05")
    dialog.get_by_role("button", name="Set lr").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("with lr 0.05").last.wait_for()
    expect(page.get_by_text("running", exact=True)).to_be_visible()

    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("cell", name="lr: 0.1 → 0.05")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
    expect(page.get_by_text("cancelled", exact=True)).to_be_visible()


def test_refused_command_says_why(visit: Visit, live_run: str) -> None:
    page = open_tab(visit, live_run, "log")
    page.get_by_text("with lr 0.1").last.wait_for()
    visit.allow("status of 400")
    page.get_by_role("button", name="Set a parameter").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Parameter").select_option("steps")
    dialog.get_by_label("Value").fill("many")
    dialog.get_by_role("button", name="Set steps").click()
    expect(dialog.get_by_role("alert")).to_contain_text("steps")


def test_content_of_users_never_runs(visit: Visit, hostile_run: str) -> None:
    page = open_tab(visit, hostile_run, "overview")
    expect(page.get_by_text(f"evil={ATTACK}")).to_be_visible()
    expect(page.get_by_label("how it ended")).to_be_visible()
    page = open_tab(visit, hostile_run, "curves")
    expect(page.get_by_role("heading", name=ATTACK)).to_be_visible()
    page = open_tab(visit, hostile_run, "media")
    expect(page.get_by_role("heading", name="sample")).to_be_visible()
    expect(page.get_by_role("img", name=ATTACK)).to_have_js_property("naturalWidth", 8)
    expect(page.get_by_role("cell", name=ATTACK)).to_be_visible()
    for name, shown in (
        ("page.html", ATTACK),
        ("picture.svg", "onload"),
        ("table.csv", ATTACK),
    ):
        page = open_tab(visit, hostile_run, f"files&files=artifact&file={name}")
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        expect(page.get_by_text(shown).last).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download").click()
        assert download.value.suggested_filename == name
    assert page.evaluate("window.ran") is None
    assert page.locator("main script, main svg[onload], main a[href^=javascript]").count() == 0


def test_log_is_read_as_a_terminal_shows_it(visit: Visit, hostile_run: str) -> None:
    page = open_tab(visit, hostile_run, "log&stream=1.0.stdout")
    lines = page.get_by_role("log")
    lines.get_by_text("line 19999").wait_for()
    page.get_by_label("search the log").fill("/red al.rt/")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 of 1")).to_be_visible()
    expect(lines.locator("mark")).to_have_text("red alert")
    expect(lines.get_by_text("a link")).to_be_visible()
    expect(lines.get_by_text("100% done", exact=True)).to_be_visible()
    expect(lines.get_by_text("more of this line")).to_be_visible()
    assert lines.get_by_role("link").count() == 0
    assert page.evaluate("window.ran") is None
    page = open_tab(visit, hostile_run, "log")
    page.get_by_role("button", name="First error").click()
    expect(page.get_by_role("log").get_by_text("Traceback (most recent call last)")).to_be_visible()


def test_run_is_forked_edited_and_deleted(visit: Visit, web_client: Client, web_runs: list[str]) -> None:
    page = open_tab(visit, web_runs[0], "checkpoints")
    expect(page.get_by_role("cell").first).to_be_visible()
    page.get_by_role("button", name="Fork", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("lr").fill("0.25")
    dialog.get_by_label("Name").fill("forked")
    dialog.get_by_role("button", name="Start the fork").click()
    expect(page.get_by_role("heading", name="forked")).to_be_visible()
    expect(page.get_by_role("link", name=web_runs[0])).to_be_visible()
    expect(page.get_by_text("succeeded", exact=True)).to_be_visible()
    name = page.url.partition("/runs/")[2]
    assert web_client.resolve_run(ref=name)["params"]["lr"] == 0.25

    page.get_by_role("button", name="more actions").click()
    page.get_by_role("menuitem", name="Edit name").click()
    page.get_by_role("textbox", name="Note").fill("a note from the browser")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("a note from the browser")).to_be_visible()
    page.get_by_role("button", name="more actions").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("button", name="Delete for ever").click()
    page.wait_for_url("**/runs")
    visit.allow("status of 404")
    page = visit.open(f"/runs/{name}")
    expect(page.get_by_text(f"There is no run {name}")).to_be_visible()


def test_page_survives_an_absent_server(visit: Visit, live_run: str) -> None:
    page = open_tab(visit, live_run, "overview")
    visit.allow("ERR_INTERNET_DISCONNECTED")
    page.context.set_offline(True)
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.get_by_role("heading", name="live")).to_be_visible()
    page.context.set_offline(False)
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_run_page_is_accessible(axe: None, open_visit: OpenVisit, hostile_run: str, theme: str) -> None:
    visit = open_visit(size=NARROW, theme=theme)
    for tab in ("overview", "log", "files", "events"):
        page = open_tab(visit, hostile_run, tab)
        expect(page.get_by_label("loading")).to_have_count(0)
        assert visit.findings() == [], tab
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= NARROW[0], f"{tab} is {width} pixels wide"

"""The page of a run, on real runs in a real browser."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

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


def test_reason_of_a_failure_is_on_each_tab(visit: Visit, web_runs: list[str]) -> None:
    for tab in ("overview", "curves", "checkpoints"):
        page = open_tab(visit, web_runs[3], tab)
        expect(page.get_by_label("how it ended")).to_contain_text("the loss is not a number")
    open_tab(visit, web_runs[3], "curves")
    expect(page.get_by_role("heading", name="No metrics", exact=True)).to_be_visible()


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


def test_all_of_a_long_log_is_shown_and_searched(visit: Visit, web_shell: Shell) -> None:
    """It is longer than what the view of all ranks reads, and has three pages."""
    web_shell.write("long.py", "for line in range(250_000): print('line of text', line)\n")
    name = web_shell.detach("-n", "long", "long.py")
    web_shell.hop("logs", "--follow", name)
    page = open_tab(visit, name, "log")
    lines = page.get_by_role("log")
    expect(lines.get_by_text("line of text 249999")).to_be_visible()
    expect(page.get_by_label("stream")).to_have_value("1.0.stdout")
    page.get_by_role("searchbox", name="search the log").fill("text 77")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="1 of")).to_be_visible()
    expect(lines.get_by_text("line of text 77", exact=True)).to_be_visible()


def test_run_is_forked_edited_and_deleted(visit: Visit, web_client: Client, web_runs: list[str]) -> None:
    page = open_tab(visit, web_runs[1], "checkpoints")
    with page.expect_download() as download:
        page.get_by_role("button", name="download the checkpoint").first.click()
    with tarfile.open(download.value.path()) as archive:
        assert any(name.endswith("/hopyard.json") for name in archive.getnames())
    page.get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url("**/new?from=*")
    expect(page.get_by_text(f"A fork of {web_runs[1]}")).to_be_visible()
    page.get_by_label("value of lr").fill("0.25")
    page.get_by_label("Name", exact=True).fill("forked")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("heading", name="forked")).to_be_visible()
    expect(page.get_by_role("link", name=web_runs[1])).to_be_visible()
    expect(page.get_by_text("succeeded", exact=True)).to_be_visible()
    name = page.url.partition("/runs/")[2].partition("?")[0]
    page.get_by_role("link", name="Overview").click()
    fork = web_client.resolve_run(ref=name)
    assert (fork["params"]["lr"], fork["spec"]["resume"]) == (0.25, None)  # from the beginning

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


def test_curves_scroll_in_the_page_and_not_the_window(open_visit: OpenVisit, web_runs: list[str]) -> None:
    page = open_tab(open_visit(size=NARROW), web_runs[0], "curves")
    expect(page.get_by_role("button", name="Add panel")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "two scroll bars"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_run_page_is_accessible(axe: None, open_visit: OpenVisit, hostile_run: str, theme: str) -> None:
    visit = open_visit(size=NARROW, theme=theme)
    for tab in ("overview", "log", "files", "events"):
        page = open_tab(visit, hostile_run, tab)
        expect(page.get_by_label("loading")).to_have_count(0)
        assert visit.findings() == [], tab
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= NARROW[0], f"{tab} is {width} pixels wide"


def press_until(page: Page, focused: Locator) -> None:
    """Presses Tab until the element has the focus. Raises AssertionError if 40 steps do not reach it."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"Tab does not reach {focused}")


def test_run_is_found_stopped_and_left_without_a_mouse(visit: Visit, live_run: str) -> None:
    page = visit.open("/runs?filter=project+%3D+mnist")
    keys, main = page.keyboard, page.locator("main")
    row = page.get_by_role("row").filter(has_text=live_run)
    row.wait_for()
    keys.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    keys.press("Enter")
    expect(main).to_be_focused()
    keys.press("/")
    expect(page.get_by_label("filter", exact=True)).to_be_focused()
    keys.press("Escape")
    expect(main).to_be_focused()
    press_until(page, page.get_by_role("grid"))
    keys.press("Home")
    keys.press("Enter")
    page.wait_for_url("**/runs/*")
    expect(main).to_be_focused()  # what had the focus is gone with the table
    keys.press("Control+k")
    page.get_by_placeholder("Type the name").wait_for()
    keys.type(live_run)
    page.get_by_role("option", name=live_run).wait_for()
    keys.press("Enter")
    stop, dialog = page.get_by_role("button", name="Stop", exact=True), page.get_by_role("dialog")
    stop.wait_for()
    expect(dialog).to_be_hidden()
    press_until(page, stop)
    keys.press("Enter")
    dialog.get_by_role("button", name="Stop the run").wait_for()
    expect(dialog.locator(":focus")).to_have_count(1)  # from then on it gets the keys
    keys.press("Escape")
    expect(stop).to_be_focused()
    keys.press("Enter")
    press_until(page, dialog.get_by_role("button", name="Stop the run"))
    keys.press("Enter")
    expect(page.get_by_text("cancelled", exact=True)).to_be_visible()
    expect(main).to_be_focused()  # its button is gone
    for sequence, place in (("gn", "new"), ("gp", "reports"), ("g,", "settings")):
        for key in sequence:
            keys.press(key)
        page.wait_for_url(f"**/{place}")


def test_failure_links_to_the_line_of_the_code(visit: Visit, web_runs: list[str]) -> None:
    page = open_tab(visit, web_runs[3], "log")
    page.get_by_role("log").get_by_role("link", name="fail.py").click()
    code = page.get_by_role("region", name="text of fail.py")
    expect(code.get_by_role("link", name="line 1", exact=True)).to_have_attribute("aria-current", "location")
    page = open_tab(visit, web_runs[3], "files&files=code&file=train.py&line=6")
    expect(code).to_have_count(0)
    page.get_by_role("link", name="line 3", exact=True).click()
    expect(page).to_have_url(re.compile("line=3$"))
    marked = page.get_by_role("region", name="text of train.py").locator("[aria-current]")
    expect(marked).to_have_text("3")
    page = open_tab(visit, web_runs[3], "overview")
    page.get_by_label("how it ended").get_by_role("link", name="fail.py, line 1").click()
    expect(code).to_contain_text("raise RuntimeError")

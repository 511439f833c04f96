"""The pages of reports: written, shared, changed by two editors, and exported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell, wait_until
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit

HOSTILE = (
    '<img src=x onerror="window.hacked=1"> [a](javascript:window.hacked=1) <script>window.hacked=1</script>'
)


@pytest.fixture(scope="session")
def ids(web_client: Client, web_runs: list[str]) -> list[str]:
    return [web_client.get_run_by_name(*name.split("/"))["id"] for name in web_runs[:3]]


@pytest.fixture
def report(web_client: Client, ids: list[str]) -> Iterator[Any]:
    """A report of three runs with a block of most kinds, and with hostile texts."""
    blocks: list[Any] = [
        {"type": "text", "text": f"# Loss\n\n$\\frac{{a}}{{b}}$ falls.\n\n{HOSTILE}"},
        {"type": "curves", "title": HOSTILE, "runs": ids, "metrics": ["train_loss"], "smoothing": 0.3},
        {"type": "table", "runs": ids, "columns": ["name", "params.lr", "metrics.val_acc"]},
        {"type": "scatter", "runs": ids, "x": "params.lr", "y": "metrics.val_acc"},
        {"type": "parallel", "runs": ids, "columns": ["params.lr", "metrics.val_acc"]},
    ]
    made = web_client.create_report({"title": f"Three rates {HOSTILE}", "blocks": blocks})
    yield made
    web_client.delete_report(made["id"])


def is_hacked(page: Page) -> bool:
    return bool(page.evaluate("'hacked' in window"))


@pytest.mark.usefixtures("axe")
def test_report_is_shown_and_hostile_text_stays_text(visit: Visit, report: Any) -> None:
    page = visit.open(f"/reports/{report['id']}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Three rates <img")
    expect(page.locator("math mfrac")).to_be_visible()
    expect(page.get_by_role("group", name="train_loss by step, 3 curves")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="0.01")).to_be_visible()
    expect(page.get_by_role("img", name="3 runs: val_acc by lr")).to_be_visible()
    expect(page.get_by_role("img", name="3 runs by lr, val_acc")).to_be_visible()
    assert visit.findings() == []
    assert not is_hacked(page)


@pytest.mark.usefixtures("axe")
def test_report_is_written_saved_and_found(open_visit: OpenVisit, web_client: Client, ids: list[str]) -> None:
    visit = open_visit()
    page = visit.open("/reports")
    page.get_by_role("button", name="New report").first.click()
    page.get_by_role("textbox", name="Title").fill("What the rate does")
    page.get_by_role("button", name="+ Add block").click()
    page.get_by_role("menuitem", name="Text").click()
    page.get_by_label("Markdown").fill("## Result\n\n$x^2$")
    expect(page.get_by_role("region", name="preview").locator("msup")).to_be_visible()
    page.get_by_role("button", name="+ Add block").click()
    page.get_by_role("menuitem", name="Curves").click()
    page.get_by_role("button", name="Runs (0)").click()
    page.get_by_role("searchbox", name="Find runs").fill("params.lr = 0.5")
    page.get_by_role("checkbox", name="fast").check()
    page.get_by_role("button", name="Show these runs").click()
    page.get_by_role("combobox", name="Metrics").fill("val_acc")
    page.get_by_role("combobox", name="Metrics").press("Enter")
    expect(page.get_by_role("group", name="val_acc by step, 1 curve")).to_be_visible()
    page.get_by_role("button", name="Move up: Curves, block 2 of 2").press("Alt+ArrowUp")
    expect(page.get_by_role("region", name="Curves, block 1 of 2")).to_be_visible()
    assert visit.findings() == []
    expect(page.get_by_role("status").filter(has_text="Saved")).to_be_visible()
    wait_until(
        lambda: any(
            [(block["type"], block.get("runs")) for block in web_client.get_report(each["id"])["blocks"]]
            == [("curves", [ids[2]]), ("text", None)]
            for each in web_client.iterate_reports()
            if each["title"] == "What the rate does"
        )
    )
    page.reload()
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("heading", name="Result")).to_be_visible()
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_role("heading", name="Reports", exact=True)).to_be_visible()
    assert "What the rate does" not in [each["title"] for each in web_client.iterate_reports()]


def test_change_of_another_editor_is_noticed_and_kept(visit: Visit, web_client: Client) -> None:
    report = web_client.create_report({"title": "first", "blocks": [{"type": "text", "text": "a"}]})
    page = visit.open(f"/reports/{report['id']}?edit=1")
    title = page.get_by_role("textbox", name="Title").first
    expect(title).to_have_value(report["title"])
    body: Any = {key: report[key] for key in ("access", "blocks", "revision")}
    theirs = web_client.put_report(report["id"], {**body, "title": "of another page"})
    expect(title).to_have_value("of another page")  # nothing was typed here, so it comes by itself
    page.context.set_offline(True)
    visit.allow("net::ERR_INTERNET_DISCONNECTED")
    title.fill("mine")
    expect(page.get_by_text("kept in this browser")).to_be_visible()
    web_client.put_report(report["id"], {**body, "title": "theirs", "revision": theirs["revision"]})
    visit.allow("status of 409")
    page.context.set_offline(False)
    page.get_by_role("button", name="Keep mine").click()
    expect(page.get_by_role("status").filter(has_text="Saved")).to_be_visible()
    assert web_client.get_report(report["id"])["title"] == "mine"
    web_client.delete_report(report["id"])


def test_comparison_is_added_to_a_report(visit: Visit, web_client: Client, ids: list[str]) -> None:
    page = visit.open("/compare?logy=1&" + "&".join(f"run={run}" for run in ids))
    page.get_by_role("button", name="Add to report").click()
    page.get_by_role("dialog").get_by_role("textbox", name="Title").fill("Compared")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("region", name="Curves, block 1 of 1")).to_be_visible()
    (found,) = [each for each in web_client.iterate_reports() if each["title"] == "Compared"]
    (block,) = web_client.get_report(found["id"])["blocks"]
    assert block["type"] == "curves"
    assert (block["runs"], block["log_y"], set(block["metrics"])) == (ids, True, {"train_loss", "val_acc"})
    web_client.delete_report(found["id"])


def test_export_opens_without_a_server(
    open_visit: OpenVisit, browser: Browser, web_shell: Shell, report: Any, tmp_path: Path
) -> None:
    visit = open_visit(size=NARROW, theme="dark")
    page = visit.open(f"/reports/{report['id']}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    from_page = tmp_path / "page.html"
    download.value.save_as(from_page)
    from_command = tmp_path / "command.html"
    assert web_shell.hop("report", "export", report["id"], "-o", str(from_command)).code == 0
    assert from_page.read_bytes() == from_command.read_bytes()
    refused: list[str] = []
    context = browser.new_context(offline=True)
    offline = context.new_page()
    offline.on("console", lambda message: refused.append(message.text))
    offline.goto(from_command.as_uri())
    expect(offline.get_by_role("heading", level=1)).to_contain_text("Three rates <img")
    expect(offline.locator("math mfrac")).to_be_visible()
    expect(offline.get_by_role("img", name="train_loss")).to_be_visible()
    assert offline.locator("path.curve").count() > 3
    assert offline.locator("script, [onerror], [style], a[href^=javascript]").count() == 0
    assert not is_hacked(offline) and refused == []
    # the policy of the file refuses a script even if one came in
    assert "script-src" in offline.evaluate(
        """() => new Promise((done) => {
          document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective))
          const script = document.createElement('script')
          script.textContent = 'window.hacked = 1'
          document.body.append(script)
        })"""
    )
    assert not is_hacked(offline)
    context.close()

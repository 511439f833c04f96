"""The page that compares runs, with the curves of real runs."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from hopyard.api_client.client import Client
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit


@pytest.fixture(scope="session")
def compared(web_client: Client, web_runs: list[str]) -> str:
    """The address of the comparison of `baseline`, `slow` and `fast`."""
    runs = [web_client.get_run_by_name(*name.split("/"))["id"] for name in web_runs[:3]]
    return "/compare?" + urlencode([("run", run) for run in runs])


@pytest.mark.usefixtures("axe")
def test_curves_of_all_metrics_are_overlaid(visit: Visit, compared: str) -> None:
    page = visit.open(compared)
    panel = page.get_by_role("region", name="train_loss", exact=True)
    expect(panel.get_by_role("group", name="train_loss by step, 3 curves")).to_be_visible()
    panel.get_by_text("Values").click()
    rows = panel.get_by_role("row")
    expect(rows.nth(0)).to_have_text("stepbaselineslowfast")
    expect(rows.nth(2)).to_have_text("10.050.0050.25")
    assert visit.findings() == []


def test_keyboard_moves_the_cursor_and_zooms(visit: Visit, compared: str) -> None:
    page = visit.open(compared)
    panel = page.get_by_role("region", name="val_acc", exact=True)
    chart = panel.get_by_role("group", name="val_acc by step, 3 curves")
    chart.press("End")
    expect(panel.get_by_text("step 4: ")).to_contain_text("baseline 0.98")
    chart.press("+")
    reset = page.get_by_role("button", name="Reset zoom")
    reset.click()
    expect(reset).to_be_hidden()


def test_drag_zooms_all_charts(visit: Visit, compared: str) -> None:
    page = visit.open(compared)
    chart = page.get_by_role("group", name="val_acc by step, 3 curves")
    expect(page.get_by_role("region", name="val_acc", exact=True).get_by_text("Values")).to_be_visible()
    box = chart.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    chart.dblclick()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()


def test_view_is_in_the_address(visit: Visit, compared: str) -> None:
    page = visit.open(compared)
    page.get_by_label("Group by").select_option("tags.team")
    page.get_by_label("Metrics").fill("^val")
    page.get_by_role("button", name="Pin val_acc").click()
    page.get_by_label("Panel of").select_option("train_loss")
    page.get_by_label("over").select_option("val_acc")
    page.get_by_role("button", name="Add panel").click()
    for _ in range(2):  # the second time from the address alone
        expect(page.get_by_role("button", name="team=vision (2)")).to_be_visible()
        expect(page.get_by_role("group", name="val_acc by step, 2 curves")).to_be_visible()
        expect(page.get_by_role("region", name="train_loss vs val_acc")).to_be_visible()
        expect(page.get_by_role("region", name="train_loss", exact=True)).to_have_count(0)
        expect(page.get_by_role("button", name="Unpin val_acc")).to_be_visible()
        page.reload()


@pytest.mark.usefixtures("axe")
def test_values_are_side_by_side_with_differences_first(open_visit: OpenVisit, compared: str) -> None:
    visit = open_visit(size=NARROW, theme="dark")
    page = visit.open(compared + "&tab=table")
    rows = page.get_by_role("row")
    expect(rows.filter(has_text="epochs")).to_have_text("epochs555")
    expect(rows.nth(2)).to_have_text("lr0.10.010.5")  # after the names of the runs and of the section
    page.get_by_label("Differences only").check()
    expect(rows.filter(has_text="epochs")).to_have_count(0)
    page.get_by_role("searchbox", name="Rows").fill("^lr$")
    expect(rows).to_have_count(3)
    assert visit.findings() == []
    page.get_by_role("searchbox", name="Rows").fill("(")
    expect(page.get_by_role("alert")).to_have_text("( is not a regular expression")


@pytest.mark.usefixtures("axe")
def test_scatter_and_parallel_coordinates(visit: Visit, compared: str) -> None:
    page = visit.open(compared + "&tab=scatter")
    expect(page.get_by_role("link", name="slow: lr 0.01, val_acc 0.99")).to_be_visible()
    assert visit.findings() == []
    page.get_by_role("link", name="Parallel coordinates").click()
    chart = page.get_by_role("group", name="3 runs by lr, val_acc, train_loss")
    chart.press("ArrowDown")
    expect(page.get_by_text("baseline: lr 0.1, val_acc")).to_be_visible()
    assert visit.findings() == []


def test_parallel_axes_are_brushed_and_moved(visit: Visit, compared: str) -> None:
    page = visit.open(compared + "&tab=parallel")
    strip = page.locator("[data-axis='params.lr']")
    box = strip.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(x, box["y"] + box["height"], steps=4)
    page.mouse.up()
    page.get_by_role("button", name="axis lr").press("ArrowRight")
    for _ in range(2):  # the second time from the address alone
        expect(page.get_by_text("2 of 3 runs selected")).to_be_visible()
        expect(page.get_by_role("group", name="3 runs by val_acc, lr, train_loss")).to_be_visible()
        page.reload()
    page.get_by_role("button", name="axis lr").click()
    page.get_by_label("From").fill("0.6")  # above the end: the ends change places
    page.get_by_label("to", exact=True).fill("0.3")
    page.get_by_role("button", name="Select", exact=True).click()
    expect(page.get_by_text("1 of 3 runs selected")).to_be_visible()
    page.get_by_role("button", name="Compare only these").click()
    expect(page.get_by_role("heading", name="Compare 1 run")).to_be_visible()


def test_page_without_runs_leads_to_the_table(visit: Visit) -> None:
    page = visit.open("/compare")
    expect(page.get_by_role("heading", name="No runs to compare")).to_be_visible()
    page.get_by_role("link", name="the table of runs").click()
    expect(page).to_have_url(f"{visit.url}/runs")

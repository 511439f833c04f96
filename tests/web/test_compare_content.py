"""What runs are compared by beside numbers: code, environment and media; and panels that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hopyard.api_client.client import Client
from tests.cli.conftest import shell_in
from tests.web.conftest import OpenVisit
from tests.web.run_scripts import SHADES
from tests.web.visit import NARROW, Visit


@pytest.fixture(scope="session")
def shaded(web_home: Path, web_client: Client, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Ids of two ended runs, `dark` and `light`: one line of code, a file and the pictures differ."""
    shell = shell_in(tmp_path_factory.mktemp("code") / "shades", web_home)
    shell.write("main.py", SHADES)
    names = []
    for label, shade in (("dark", 10), ("light", 200)):
        lines = [f"# line {number}" for number in range(50)]
        shell.write("shade.py", "\n".join([*lines, f"SHADE = {shade}", *lines]) + "\n")
        names.append(shell.detach("-n", label, "main.py"))
        shell.write("notes.md", "<script>window.ran=1</script>\n")
    for name in names:
        shell.hop("logs", "--follow", name)
    return [str(web_client.get_run_by_name(*name.split("/"))["id"]) for name in names]


def open_tab(visit: Visit, runs: list[str], tab: str) -> Page:
    return visit.open("/compare?" + "&".join(f"run={run}" for run in runs) + f"&tab={tab}")


@pytest.mark.usefixtures("axe")
def test_code_is_compared_by_lines(visit: Visit, shaded: list[str]) -> None:
    page = open_tab(visit, shaded, "code")
    files = page.get_by_role("navigation", name="files")
    expect(files.get_by_text("2 of 3 files differ")).to_be_visible()
    files.get_by_role("button", name="shade.py").click()
    lines = page.get_by_role("group", name="lines")
    expect(lines.get_by_role("row").filter(has_text="SHADE")).to_have_text("51−SHADE = 1051+SHADE = 200")
    expect(page.get_by_text("+1 −1 lines")).to_be_visible()
    lines.get_by_role("button", name="47 equal lines").first.click()
    expect(lines.get_by_text("# line 0").first).to_be_visible()
    assert visit.findings() == []
    page.get_by_label("One column").check()
    page.get_by_label("Differences only").check()
    for _ in range(2):  # the second time from the address alone
        expect(lines.get_by_role("row").filter(has_text="SHADE")).to_have_count(2)
        expect(files.get_by_role("button")).to_have_count(2)
        page.reload()
    files.get_by_role("button", name="notes.md added").click()
    expect(lines).to_contain_text("<script>window.ran=1</script>")
    page.get_by_role("searchbox", name="Files").fill("^shade")
    expect(files.get_by_role("button")).to_have_count(1)
    assert page.evaluate("window.ran") is None


@pytest.mark.usefixtures("axe")
def test_media_of_runs_share_a_step(open_visit: OpenVisit, shaded: list[str]) -> None:
    visit = open_visit(theme="dark")
    page = open_tab(visit, shaded, "media")
    media = page.get_by_role("region", name="media at step 2")
    for shade in (12, 202):
        expect(media.get_by_role("img", name=f"shade {shade}")).to_have_js_property("naturalWidth", 16)
    expect(media.get_by_text("the same in all runs")).to_have_count(2)
    assert visit.findings() == []
    page.get_by_label("Differences only").check()
    expect(media.get_by_text("the same in all runs")).to_have_count(0)
    page.get_by_role("heading", name="Compare 2 runs").click()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("searchbox", name="Rows").fill("^pic")
    for _ in range(2):  # the second time from the address alone
        media = page.get_by_role("region", name="media at step 1")
        expect(media.get_by_role("img")).to_have_count(2)
        expect(media.get_by_role("img", name="shade 201")).to_be_visible()
        page.reload()


@pytest.mark.usefixtures("axe")
def test_environment_shows_machines_and_packages(open_visit: OpenVisit, shaded: list[str]) -> None:
    visit = open_visit(size=NARROW)
    page = open_tab(visit, shaded, "environment")
    rows = page.get_by_role("row")
    expect(rows.filter(has=page.get_by_role("rowheader", name="nodes", exact=True))).to_have_text(
        "nodesboxbox"
    )
    page.get_by_role("searchbox", name="Rows").fill("^hopyard$")
    expect(rows).to_have_count(3)  # the runs, the section and the package
    assert visit.findings() == []


def test_panels_are_arranged_and_kept_in_a_view(visit: Visit, shaded: list[str]) -> None:
    page = open_tab(visit, shaded, "curves")
    page.get_by_role("button", name="Pin loss").click()
    page.get_by_role("button", name="Pin epoch").click()
    page.get_by_label("Panel of").select_option("loss")
    page.get_by_label("over").select_option("epoch")
    page.get_by_role("button", name="Add panel").click()
    headings = page.locator("section h2")
    expect(headings).to_have_text(["loss vs epoch", "loss", "epoch"])
    page.get_by_role("heading", name="epoch", exact=True).drag_to(
        page.get_by_role("region", name="loss", exact=True)
    )
    expect(headings).to_have_text(["loss vs epoch", "epoch", "loss"])
    page.get_by_role("button", name="→ epoch").click()
    expect(headings).to_have_text(["loss vs epoch", "loss", "epoch"])
    page.get_by_role("button", name="+ Save view").click()
    page.get_by_label("Name of the view").fill("by-epoch")
    page.get_by_role("button", name="Save", exact=True).click()
    open_tab(visit, shaded[:1], "curves")
    page.get_by_role("button", name="by-epoch").click()
    expect(headings).to_have_text(["loss vs epoch", "loss", "epoch"])
    page.get_by_role("button", name="change the view by-epoch").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_role("button", name="by-epoch")).to_have_count(0)


@pytest.mark.usefixtures("axe")
def test_run_page_keeps_panels_lists_media_and_previews_tables(visit: Visit, shaded: list[str]) -> None:
    page = visit.open(f"/runs/{shaded[0]}?tab=curves&pin=loss&panel=loss+vs+epoch")
    expect(page.locator("section h2").nth(1)).to_have_text("loss")
    expect(page.get_by_role("region", name="loss vs epoch").get_by_text("No points")).to_have_count(0)
    page.get_by_role("button", name="Unpin loss").click()
    expect(page.locator("section h2").nth(1)).to_have_text("epoch")
    visit.open(f"/runs/{shaded[0]}?tab=media")
    page.get_by_role("button", name="List and picture").click()
    page.get_by_label("filter names").fill("pict")
    large = page.get_by_role("figure")
    expect(large.get_by_role("img", name="shade 12")).to_be_visible()
    page.get_by_role("heading").first.click()
    page.keyboard.press("ArrowDown")
    expect(large.get_by_role("img", name="shade 11")).to_be_visible()
    assert visit.findings() == []
    visit.open(f"/runs/{shaded[0]}?tab=files&files=artifact&file=scores.csv")
    table = page.get_by_role("table", name="scores.csv")
    table.get_by_role("button", name="score").click()
    table.get_by_role("button", name="score").click()
    expect(table.get_by_role("row").filter(has_text="run 1499")).to_be_visible()
    page.get_by_label("find rows of scores.csv").fill("run 77")
    expect(page.get_by_text("11 of 1,500 rows")).to_be_visible()
    assert visit.findings() == []

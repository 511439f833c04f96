"""The pages of datasets, on real data and runs in a real browser."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit

PART_BYTES = 64 << 10  # of a long text, as in `line_window.ts`
ATTACK = "<img src=x onerror=window.ran=1><script>window.ran=1</script>"
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='window.ran=1'><script>window.ran=1</script></svg>"
ODD_NAME = "<img src=x onerror=window.ran=1>.txt"
ROWS = 20_000
SCORE = "import hopyard as hop\np = hop.params(lr=0.1)\nhop.summary(val_acc=1 - p.lr)\n"


def png(level: int) -> bytes:
    def part(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    pixels = zlib.compress(b"".join(b"\0" + bytes([level] * 8) for _ in range(8)))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", pixels) + part(b"IEND", b"")


@pytest.fixture(scope="module")
def dataset(web_shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a dataset with two versions, hostile files, and three ended runs that use it."""
    data = tmp_path_factory.mktemp("data") / "digits"
    for number in range(70):
        (data / "train" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (data / "train" / str(number % 2) / f"{number:03}.png").write_bytes(png(3 * number))
    (data / "labels.csv").write_text(
        "file,label\n" + "".join(f"{row}.png,{row % 10}\n" for row in range(ROWS))
    )
    (data / "hostile.csv").write_text(f"name,value\n{ATTACK},=1+1\n")
    (data / "page.html").write_text(ATTACK)
    (data / "picture.svg").write_text(SVG)
    (data / "fake.png").write_text(SVG)
    (data / ODD_NAME).write_text("odd name")
    (data / "about.json").write_text(json.dumps({"classes": 10}))
    web_shell.hop("dataset", "push", "digits-raw", str(data), "-m", "as scanned")
    web_shell.hop("dataset", "push", "digits", str(data), "--metric", "val_acc", "-m", ATTACK)
    (data / "extra.txt").write_text("more")
    web_shell.hop("dataset", "push", "digits", str(data), "--from", "digits-raw:1")
    web_shell.write("score.py", SCORE)
    for lr in ("0.3", "0.1", "0.2"):
        name = web_shell.detach("-d", "digits", "-n", f"lr-{lr}", "-p", f"lr={lr}", "score.py")
        web_shell.hop("logs", "--follow", name)
    return "digits"


def open_tab(visit: Visit, name: str, query: str = "") -> Page:
    page = visit.open(f"/datasets/{name}{query}")
    page.get_by_role("navigation", name="parts of the dataset").wait_for()
    return page


def test_datasets_are_listed_filtered_and_opened(visit: Visit, dataset: str) -> None:
    page = visit.open("/datasets")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="digits", exact=True))
    expect(row).to_contain_text("val_acc 0.9")
    expect(row.get_by_role("link", name="3", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("scanned")
    expect(page.get_by_role("link", name="digits", exact=True)).to_be_hidden()
    page.get_by_role("link", name="digits-raw").click()
    expect(page.get_by_text("No run has a result yet")).to_be_visible()
    page.get_by_role("link", name="Runs 0").click()
    expect(page.get_by_text("hop run main.py -d digits-raw")).to_be_visible()


def test_leaderboard_ranks_runs_by_the_chosen_metric(visit: Visit, dataset: str) -> None:
    page = open_tab(visit, dataset)
    table = page.get_by_role("table", name="leaderboard")
    expect(table.get_by_role("link", name="lr-")).to_have_text(["lr-0.1", "lr-0.2", "lr-0.3"])
    expect(table.get_by_role("row").nth(1)).to_contain_text("0.9")
    expect(page.get_by_role("img", name="best val_acc so far, over time: 0.9 now")).to_be_visible()
    page.get_by_role("button", name="Change the default").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Which values are better").select_option("lower")
    dialog.get_by_role("button", name="Save").click()
    expect(table.get_by_role("link", name="lr-")).to_have_text(["lr-0.3", "lr-0.2", "lr-0.1"])
    page.get_by_role("button", name="Change the default").click()
    page.get_by_role("dialog").get_by_label("Which values are better").select_option("")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(table.get_by_role("link", name="lr-").first).to_have_text("lr-0.1")
    table.get_by_role("link", name="lr-0.1").click()
    page.get_by_role("link", name="digits:2").click()
    expect(page.get_by_role("heading", name="digits")).to_be_visible()


def test_versions_and_runs_of_a_dataset(visit: Visit, dataset: str) -> None:
    page = open_tab(visit, dataset, "?tab=versions")
    newest = page.get_by_role("table", name="versions").get_by_role("row").nth(1)
    expect(newest.get_by_role("link", name="digits-raw:1")).to_be_visible()
    expect(page.get_by_text(ATTACK)).to_be_visible()
    page.get_by_role("link", name="Runs 3").click()
    runs = page.get_by_role("table", name="runs on the dataset")
    expect(runs.get_by_role("link", name="lr-")).to_have_text(["lr-0.2", "lr-0.1", "lr-0.3"])
    expect(runs.get_by_text("succeeded").first).to_be_visible()
    assert page.evaluate("window.ran") is None


def test_files_are_a_gallery_or_a_list_with_previews(visit: Visit, dataset: str) -> None:
    page = open_tab(visit, dataset, "?tab=files")
    page.get_by_role("button", name="train/").click()
    page.get_by_role("button", name="1/").click()
    pictures = page.locator("main li img")
    expect(pictures).to_have_count(35)
    expect(pictures.first).to_have_js_property("naturalWidth", 8)
    page.keyboard.press("j")
    page.keyboard.press("j")
    preview = page.get_by_role("region", name="preview")
    expect(preview.get_by_role("heading")).to_have_text("train/1/003.png")
    expect(preview.get_by_role("img")).to_have_js_property("naturalWidth", 8)
    page.get_by_role("navigation", name="folder").get_by_role("button", name="digits").click()
    page.get_by_label("find files").fill(".png")
    expect(pictures).to_have_count(60)
    page.get_by_role("button", name="Next →").click()
    expect(pictures).to_have_count(11)
    page.get_by_label("find files").fill("nothing like it")
    expect(page.get_by_text("No file has")).to_be_visible()
    page = open_tab(visit, dataset, "?tab=files&file=about.json")
    expect(page.get_by_text('"classes": 10')).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "about.json"


def test_long_table_is_read_in_parts(visit: Visit, dataset: str) -> None:
    page = open_tab(visit, dataset, "?tab=files&file=labels.csv")
    expect(page.get_by_role("cell", name="0.png", exact=True)).to_be_visible()
    page.get_by_role("button", name="next part").click()
    expect(page.get_by_role("cell", name="0.png", exact=True)).to_be_hidden()
    expect(page.get_by_role("columnheader", name="label")).to_be_visible()
    page.get_by_label("Part", exact=True).fill("99")
    page.get_by_label("Part", exact=True).press("Enter")
    page.get_by_label("find rows of labels.csv").fill(f"{ROWS - 1}.png")
    expect(page.get_by_role("cell", name=f"{ROWS - 1}.png", exact=True)).to_be_visible()


def test_long_text_has_the_numbers_of_its_lines(visit: Visit, web_shell: Shell, tmp_path: Path) -> None:
    text = "".join(f"step {number}\n" for number in range(1, 30_001))
    (tmp_path / "log.txt").write_text(text)
    web_shell.hop("dataset", "push", "long-text", str(tmp_path / "log.txt"))
    page = open_tab(visit, "long-text", "?tab=files&file=log.txt&line=20000")
    shown = page.get_by_role("region", name="text of log.txt")
    expect(shown.get_by_role("link", name="line 20000")).to_have_attribute("aria-current", "location")
    expect(page.get_by_label("Part", exact=True)).to_have_value(
        str(text.index("step 20000\n") // PART_BYTES + 1)
    )
    for part in (5, 4, 1, 2):
        page.get_by_label("Part", exact=True).fill(str(part))
        begin = text.index("\n", (part - 1) * PART_BYTES - 1) + 1 if part > 1 else 0
        first = text[begin:].partition("\n")[0]
        expect(shown.locator("pre")).to_have_text(re.compile(f"^{first}\\s"))
        shown.evaluate("(box) => box.scrollTo(0, 0)")
        expect(shown.get_by_role("link", name=first.replace("step", "line"), exact=True)).to_be_visible()


def test_files_of_users_never_run(visit: Visit, dataset: str) -> None:
    for name, shown in (
        ("page.html", ATTACK),
        ("picture.svg", "onload"),
        ("fake.png", "onload"),
        ("hostile.csv", ATTACK),
        (ODD_NAME, "odd name"),
    ):
        page = visit.open("/datasets/digits?tab=files&view=list")
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("region", name="preview").get_by_text(shown).last).to_be_visible()
    assert page.evaluate("window.ran") is None
    assert page.locator("main script, main svg[onload], main a[href^=javascript]").count() == 0


def test_description_is_edited_and_a_change_of_another_user_is_kept(
    visit: Visit, web_client: Client, dataset: str
) -> None:
    visit.allow("status of 409")
    page = open_tab(visit, "digits-raw")
    page.get_by_role("button", name="+ Add a description").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Markdown").fill(f"## Scans\n\nof **zip codes** {ATTACK} [x](javascript:alert(1))")
    expect(dialog.get_by_role("heading", name="Scans")).to_be_visible()
    dialog.get_by_role("button", name="Save").click()
    shown = page.get_by_role("region", name="description", exact=True)
    expect(shown.get_by_role("heading", name="Scans")).to_be_visible()
    expect(shown).to_contain_text(ATTACK)
    assert shown.get_by_role("link").count() == 0 and page.evaluate("window.ran") is None

    page.get_by_role("button", name="Edit the description").click()
    web_client.put_dataset_description("digits-raw", {"description": "from a terminal"})
    dialog.get_by_label("Markdown").fill("mine")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("changed the description meanwhile")
    dialog.get_by_role("button", name="Load theirs").click()
    expect(dialog.get_by_label("Markdown")).to_have_value("from a terminal")
    web_client.put_dataset_description("digits-raw", {"description": "again"})
    dialog.get_by_label("Markdown").fill("mine")
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_role("button", name="Keep mine").click()
    expect(shown).to_contain_text("mine")
    assert web_client.get_dataset("digits-raw")["description"] == "mine"


def test_deletion_says_what_it_frees(
    visit: Visit, web_shell: Shell, web_client: Client, tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 8)
    web_shell.hop("dataset", "push", "scratch", str(tmp_path))
    page = open_tab(visit, "scratch")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("frees about 2 KiB")
    page.get_by_role("button", name="Delete for ever").click()
    page.wait_for_url("**/datasets")
    assert "scratch" not in [row["name"] for row in web_client.iterate_datasets()]
    visit.allow("status of 404")
    page = visit.open("/datasets/scratch")
    expect(page.get_by_text("There is no dataset scratch")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_of_datasets_are_accessible(axe: None, open_visit: OpenVisit, dataset: str, theme: str) -> None:
    visit = open_visit(size=NARROW, theme=theme)
    for path in (
        "/datasets",
        "/datasets/digits",
        "/datasets/digits?tab=files&file=hostile.csv",
        "/datasets/digits?tab=versions",
        "/datasets/digits?tab=runs",
    ):
        page = visit.open(path)
        page.get_by_role("main").get_by_role("heading", level=1).wait_for()
        expect(page.get_by_label("loading")).to_have_count(0)
        assert visit.findings() == [], path
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= NARROW[0], f"{path} is {width} pixels wide"

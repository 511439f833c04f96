"""What a newcomer without a terminal does from the browser: upload a dataset, and start a study."""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect, start_server, stop_server
from hopyard.config.home import Home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit

HOSTILE = "<img src=x onerror=window.ran=1>"
SMALL_SCREEN = (1366, 768)
TUNE = """
import argparse
import hopyard as hop

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()
for epoch in range(args.epochs):
    hop.log(val_acc=1 - abs(args.lr - 0.3), step=epoch + 1)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a file of two parts, many small files, a hostile name, and files that are left out."""
    folder = tmp_path / "My digits"
    (folder / "train").mkdir(parents=True)
    (folder / "drafts").mkdir()
    for number in range(40):
        (folder / "train" / f"{number:03}.txt").write_text(f"row {number % 5}\n")
    (folder / "large.bin").write_bytes(bytes(range(256)) * (9 << 12))
    (folder / f"{HOSTILE}.txt").write_text("a hostile name")
    (folder / "drafts" / "x.txt").write_text("not yet")
    (folder / ".hopignore").write_text("drafts/\n")
    return folder


def choose(page: Page, region: str, folder: Path) -> None:
    chooser = page.get_by_role("region", name=region).locator("input[type=file]").first
    chooser.set_input_files(folder)
    expect(page.get_by_role("button", name="Choose other")).to_be_visible()


def test_uploaded_folder_is_the_dataset_that_a_push_makes(
    visit: Visit, web_shell: Shell, web_client: Client, data: Path
) -> None:
    page = visit.open("/datasets?push=")
    choose(page, "files", data)
    expect(page.get_by_text("43 files, 9")).to_be_visible()
    expect(page.get_by_text("1 path is left out")).to_be_visible()
    name = page.get_by_label("Name", exact=True)
    expect(name).to_have_value("my-digits")
    name.fill("my digits")
    expect(page.get_by_text("this is not a name")).to_be_visible()
    expect(page.get_by_role("button", name="Upload the dataset")).to_be_disabled()
    name.fill("uploaded")
    page.get_by_label("Message").fill(HOSTILE)
    page.get_by_label("Metric").fill("latency")
    page.get_by_label("Which values are better").select_option("lower")
    page.get_by_role("button", name="Upload the dataset").click()
    expect(page.get_by_role("heading", name="uploaded has version 1")).to_be_visible()
    assert "still version 1" in web_shell.hop("dataset", "push", "uploaded", str(data)).stderr_text
    dataset = web_client.get_dataset("uploaded")
    assert (dataset["metric"], dataset["higher_is_better"]) == ("latency", False)
    page.get_by_role("link", name="Start a run with it").click()
    expect(page.get_by_label("dataset", exact=True)).to_have_value("uploaded:1")
    assert page.evaluate("window.ran") is None


def test_new_version_is_sent_again_after_a_refused_upload(
    visit: Visit, web_shell: Shell, web_client: Client, data: Path
) -> None:
    web_shell.hop("dataset", "push", "grown", str(data))
    (data / "extra.txt").write_text("more of it")
    page = visit.open("/datasets/grown")
    page.get_by_role("button", name="New version").click()
    expect(page.get_by_text("Its newest version is 1: 43 files")).to_be_visible()
    choose(page, "files", data)
    page.get_by_label("Made from").fill("grown:9")
    expect(page.get_by_text("the newest version of grown is 1")).to_be_visible()
    page.get_by_label("Made from").fill("grown:1")
    visit.allow("status of 507")
    refused = '{"error": {"code": "quota", "message": "the storage is full", "hints": ["delete a version"]}}'
    page.route("**/blobs/pack", lambda route: route.fulfill(status=507, body=refused), times=1)
    page.get_by_role("button", name="Upload the new version").click()
    expect(page.get_by_role("alert")).to_contain_text("the storage is full")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="grown has version 2")).to_be_visible()
    version = web_client.get_dataset_version("grown", "2")
    assert (version["files"], version["derived_from"]) == (44, "grown:1")


def test_cancelled_upload_makes_no_version(visit: Visit, web_client: Client, data: Path) -> None:
    page = visit.open("/datasets?push=")
    choose(page, "files", data)
    page.get_by_label("Name", exact=True).fill("cancelled")
    page.route("**/blobs/missing", lambda _: None)  # no answer comes
    page.get_by_role("button", name="Upload the dataset").click()
    expect(page.get_by_text("Comparing with the server")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Upload the dataset")).to_be_enabled()
    assert "cancelled" not in [dataset["name"] for dataset in web_client.iterate_datasets()]


def test_study_starts_from_its_form(open_visit: OpenVisit, web_client: Client, tmp_path: Path) -> None:
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "tune.py").write_text(TUNE)
    visit = open_visit(size=SMALL_SCREEN)
    page = visit.open("/studies")
    page.get_by_role("button", name="New study").click()
    choose(page, "code", tmp_path / "tune")
    answer = page.get_by_label("the queue's answer")
    expect(page.get_by_text("there is no parameter in it")).to_be_visible()
    page.get_by_label("name of the searched parameter").fill("lrr")
    page.get_by_label("lower end of lrr").fill("1")
    page.get_by_label("upper end of lrr").fill("0.001")
    expect(page.get_by_text("the lower end comes first")).to_be_visible()
    page.get_by_label("lower end of lrr").fill("1e-3")
    page.get_by_label("upper end of lrr").fill("0.5")
    page.get_by_label("lrr on a log scale").check()
    page.get_by_label("Metric").fill("val_acc")
    page.get_by_label("Trials", exact=True).fill("3")
    page.get_by_label("Searcher").select_option("asha")
    page.get_by_label("Epochs of a trial").fill("3")
    expect(page.get_by_text("did you mean `lr`?")).to_be_visible()
    page.get_by_label("name of the searched parameter").fill("lr")
    expect(answer.get_by_role("status")).to_contain_text("The first trial starts now")
    expect(answer.get_by_text("asha: the largest val_acc of at most 3 trials, 4 at a time")).to_be_visible()
    expect(answer.get_by_role("listitem")).to_have_count(3)
    page.get_by_role("button", name="Edit as a file").click()
    expect(page.get_by_label("The whole run as a file")).to_have_value(re.compile("searcher: asha"))
    page.get_by_role("button", name="Back to the form").click()
    page.get_by_role("button", name="Add a tag").scroll_into_view_if_needed()
    start = page.get_by_role("button", name="Start the study")
    expect(start).to_be_in_viewport()
    page.get_by_label("Name", exact=True).fill("from-the-form")
    start.click()
    expect(page.get_by_role("heading", name="from-the-form")).to_be_visible()
    study = web_client.resolve_run(ref="from-the-form")["spec"]["study"]
    assert study is not None and (study["trials"], study["searcher"]["name"]) == (3, "asha")
    expect(page.get_by_text("succeeded", exact=True).first).to_be_visible()
    expect(page.get_by_role("table", name="trials").get_by_role("row")).to_have_count(4)


def test_pages_are_accessible_and_fit_a_phone(axe: None, open_visit: OpenVisit) -> None:
    for options in ({}, {"size": NARROW, "theme": "dark"}):
        visit = open_visit(**options)
        for path, text in (("/datasets?push=", "Drop a folder"), ("/new?search=1", "Ranges")):
            page = visit.open(path)
            page.get_by_text(text).first.wait_for()
            assert visit.findings() == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_upload_continues_after_a_killed_server(tmp_path: Path, browser: Browser) -> None:
    """The server gets SIGKILL while it has a part of the bytes, and starts again with the same address."""
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.bin").write_bytes(random.Random(number).randbytes(9 << 20))
    home = Home(tmp_path / "home").create()
    home.settings_file.write_text("node: {id: box, cpus: 4, memory: 8G}\n")
    shell = shell_in(tmp_path / "code", home.root)
    start_server(home)
    try:
        visit = Visit(browser, connect(start=False, home=home).url)
        visit.allow("status of 401")
        visit.allow("ERR_|WebSocket|Failed to load")  # while the server is away
        page = visit.open(shell.hop("ui", "--print").text.strip())
        page.get_by_role("navigation").wait_for()
        page = visit.open("/datasets?push=")
        choose(page, "files", folder)
        sent: list[int] = []

        def kill_after_two(route: Route) -> None:
            sent.append(len(route.request.post_data_buffer or b""))
            if len(sent) == 3:
                os.kill((home.read_server() or {})["pid"], signal.SIGKILL)
            route.continue_()

        page.route("**/blobs/pack", kill_after_two)
        page.get_by_role("button", name="Upload the dataset").click()
        expect(page.get_by_text("The server does not answer")).to_be_visible()
        start_server(home)
        expect(page.get_by_role("heading", name="large has version 1")).to_be_visible()
        assert 72 << 20 <= sum(sent) < 100 << 20, "only what the server lacked was sent again"
        client = connect(start=False, home=home)
        assert client.get_dataset_version("large", "1")["size_bytes"] == 72 << 20
        assert "still version 1" in shell.hop("dataset", "push", "large", str(folder)).stderr_text
        visit.close()
    finally:
        stop_server(home, runs="stop")

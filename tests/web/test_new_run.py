"""A new run from the browser, as a newcomer without a terminal starts one."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hopyard.api_client.client import Client
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit

HOSTILE = "<img src=x onerror=window.ran=1>"
TRAIN = """
import argparse
import hopyard as hop

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
for epoch in range(args.epochs):
    hop.log(loss=args.lr / (epoch + 1), step=epoch)
print("trained with", args.lr)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with a script, and with files that do not travel."""
    folder = tmp_path / "digits"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "data" / "large.bin").write_bytes(b"0" * 1000)
    (folder / ".gitignore").write_text("data/\n")
    (folder / f"{HOSTILE.replace('/', '')}.txt").write_text("a hostile name")
    return folder


def upload(page: Page, folder: Path) -> None:
    page.get_by_role("region", name="code").locator("input[type=file]").first.set_input_files(folder)
    expect(page.get_by_role("button", name="Choose other code")).to_be_visible()


def answer(page: Page) -> Page:
    return page.get_by_label("the queue's answer").get_by_role("status")  # type: ignore[return-value]


def test_newcomer_uploads_a_folder_and_watches_its_curve(
    visit: Visit, code: Path, web_client: Client
) -> None:
    page = visit.open("/new")
    upload(page, code)
    expect(page.get_by_text("2 paths are left out")).to_be_visible()
    expect(page.get_by_label("Command")).to_have_value("python train.py")
    expect(answer(page)).to_contain_text("Starts now on box")
    page.get_by_role("button", name="lr", exact=True).click()
    expect(page.get_by_label("value of lr")).to_be_focused()
    page.get_by_label("value of lr").fill("many")
    expect(page.get_by_text("not a number")).to_be_visible()
    page.get_by_label("value of lr").fill("0.5")
    page.get_by_label("Name", exact=True).fill("first-try")
    page.reload()  # the draft stays
    expect(page.get_by_label("value of lr")).to_have_value("0.5")
    expect(answer(page)).to_contain_text("Starts now")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("heading", name="first-try")).to_be_visible()
    expect(page.get_by_text("succeeded", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="loss")).to_be_visible()
    run = web_client.resolve_run(ref="first-try")
    assert (run["params"]["lr"], run["name"].split("/")[1]) == (0.5, "digits")
    assert page.evaluate("window.ran") is None
    visit.open("/new")
    expect(page.get_by_label("Command")).to_have_value("")  # the draft was sent


def test_bad_values_are_named_beside_their_fields(visit: Visit, code: Path) -> None:
    page = visit.open("/new")
    upload(page, code)
    page.get_by_label("Command").fill("python trian.py")
    expect(page.get_by_text("trian.py is not in the code")).to_be_visible()
    expect(page.get_by_text("did you mean `train.py`?")).to_be_visible()
    expect(page.get_by_role("button", name="Start the run")).to_be_disabled()
    page.get_by_label("Command").fill("python train.py")
    page.get_by_label("CPUs").fill("64")
    expect(answer(page)).to_contain_text("Can never start")
    page.get_by_label("CPUs").fill("1")
    page.get_by_label("Priority").fill("900")
    expect(page.get_by_text("`900` is not a whole number from 0 to 100")).to_be_visible()
    page.get_by_label("Priority").fill("")
    visit.allow("status of 40[04]")
    page.get_by_role("button", name="Add a dataset").click()
    page.get_by_label("dataset", exact=True).fill("nothing-here")
    expect(page.get_by_role("alert").filter(has_text="nothing-here")).to_be_visible()
    page.get_by_role("button", name="remove nothing-here").click()
    expect(answer(page)).to_contain_text("Starts now")
    page.get_by_role("button", name="Edit as a file").click()
    file = page.get_by_label("The whole run as a file")
    file.fill(file.input_value().replace("roles:", "rolls:"))
    expect(page.get_by_text("there is no key `rolls`")).to_be_visible()
    file.fill(file.input_value().replace("rolls:", "priority: 70\nroles:"))
    page.get_by_role("button", name="Back to the form").click()
    expect(page.get_by_label("Priority")).to_have_value("70")
    assert page.evaluate("window.ran") is None


def test_earlier_run_fills_the_page(visit: Visit, web_runs: list[str], web_client: Client) -> None:
    run = web_client.resolve_run(ref=web_runs[1])
    page = visit.open(f"/new?from={run['id']}")
    expect(page.get_by_label("value of lr")).to_have_value("0.01")
    expect(page.get_by_label("value of team")).to_have_value("vision")
    page.get_by_label("Start from").select_option(index=1)
    page.get_by_label("Name", exact=True).fill("again")
    page.get_by_label("Project").fill("forks")
    expect(answer(page)).to_contain_text("Starts now")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("heading", name="again")).to_be_visible()
    fork = web_client.resolve_run(ref="again")
    assert (fork["spec"]["forked_from"], fork["name"].split("/")[1]) == (run["id"], "forks")


def test_earlier_run_is_taken_by_its_label_and_its_parameter_is_searched(
    visit: Visit, web_runs: list[str]
) -> None:
    page = visit.open("/new?search=1")
    page.get_by_role("button", name="Earlier run").click()
    page.get_by_label("Run", exact=True).fill("slow")
    page.get_by_role("button", name="Take this run").click()
    expect(page.get_by_text(f"the code of {web_runs[1]}")).to_be_visible()
    expect(page.get_by_label("value of lr")).to_have_value("0.01")
    page.get_by_placeholder("lr", exact=True).fill("lr")
    page.get_by_placeholder("from", exact=True).fill("0.01")
    page.get_by_placeholder("to", exact=True).fill("0.1")
    page.get_by_label("Metric", exact=True).fill("val_acc")
    page.get_by_label("Trials", exact=True).fill("2")
    expect(page.get_by_text("Not used: its range below replaces this value.")).to_be_visible()
    expect(answer(page)).to_contain_text("now")
    expect(page.get_by_role("button", name="Start the study")).to_be_enabled()


def test_repository_of_another_host_is_refused_with_the_setting(visit: Visit) -> None:
    visit.allow("status of 403")
    page = visit.open("/new")
    page.get_by_role("button", name="Git repository").click()
    page.get_by_label("Address").fill("https://127.0.0.1/x/y")
    page.get_by_role("button", name="Fetch the code").click()
    expect(page.get_by_role("alert")).to_contain_text("git: {hosts: [https://127.0.0.1]}")


def test_page_is_accessible_and_fits_a_phone(axe: None, open_visit: OpenVisit, code: Path) -> None:
    for options in ({}, {"size": NARROW, "theme": "dark"}):
        visit = open_visit(**options)
        page = visit.open("/new")
        upload(page, code)
        expect(answer(page)).to_contain_text("Starts now")
        assert visit.findings() == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

"""The pages of studies, with real studies: trials that are runs, and trials that hop between workers."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.visit import Visit

ATTACK = "<img src=x onerror=window.ran=1>"
SCRIPT = """
import hopyard as hop

p = hop.params(lr=0.1, width=8, shape="plain", epochs=1)
for epoch in range(p.epochs):
    hop.log(val_acc=1 - abs(p.lr - 0.3) + 0.01 * epoch, step=epoch + 1)
"""
STUDY = f"""
name: tuned
metric: val_acc
goal: max
searcher: asha
trials: 8
epochs: 3
concurrent: 4
seed: 1
space:
  lr: uniform(0, 1)
  width: [8, 16]
  shape: ["{ATTACK}", plain]
script: tune.py
"""

ENDLESS = """
import time
import hopyard as hop

p = hop.params(lr=0.1)
for step in hop.loop(range(100_000)):
    hop.log(val_acc=p.lr, step=step)
    time.sleep(0.05)
"""
TIMEOUT_MS = 60_000


@pytest.fixture(scope="session")
def study(web_shell: Shell) -> str:
    """The name of an ended study with runs as trials."""
    web_shell.write("tune.py", SCRIPT)
    web_shell.write("study.yaml", STUDY)
    name = web_shell.hop("search", "study.yaml", "--detach").text.strip()
    assert name, "the study was refused"
    web_shell.hop("logs", "--follow", name)
    return name


def test_list_leads_to_the_trials_of_a_study(visit: Visit, study: str) -> None:
    page = visit.open("/studies")
    row = page.get_by_role("row").filter(has_text=study)
    expect(row).to_contain_text("asha")
    expect(row).to_contain_text("8/8")
    expect(row).to_contain_text("lr=")
    page.get_by_label("filter studies").fill("no such study")
    expect(page.get_by_role("heading", name="No study matches")).to_be_visible()
    page.get_by_label("filter studies").fill("asha")
    row.get_by_role("link").click()
    expect(page).to_have_url(f"{visit.url}/studies/{study}")
    expect(page.get_by_role("cell", name=ATTACK).first).to_be_visible()
    rows = page.get_by_role("table", name="trials").get_by_role("row")
    expect(rows).to_have_count(9)
    page.get_by_role("button", name="width").click()
    expect(page).to_have_url(f"{visit.url}/studies/{study}?sort=params.width")
    rows.nth(1).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("window.ran") is None


def test_trial_is_stopped_and_a_study_is_stopped_continued_and_forked(
    visit: Visit, web_shell: Shell, web_client: Client
) -> None:
    web_shell.write("endless.py", ENDLESS)
    web_shell.write(
        "endless.yaml",
        "metric: val_acc\ngoal: max\nsearcher: random\ntrials: 2\nconcurrent: 1\n"
        "space:\n  lr: uniform(0, 1)\nscript: endless.py\n",
    )
    name = web_shell.hop("search", "endless.yaml", "--detach").text.strip()
    assert name, "the study was refused"
    page = visit.open(f"/studies/{name}")
    rows = page.get_by_role("table", name="trials").get_by_role("row")
    started = []
    try:
        # a trial
        expect(rows.filter(has_text="training")).to_have_count(1, timeout=TIMEOUT_MS)
        page.get_by_role("button", name="trial 0").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop the trial").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop the trial").click()
        expect(page.get_by_role("dialog").get_by_text("stopped").first).to_be_visible(timeout=TIMEOUT_MS)
        page.get_by_role("button", name="Close").click()
        expect(rows.filter(has_text="training")).to_have_count(1, timeout=TIMEOUT_MS)

        # the study, which continues with one more trial
        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Stop the study").click()
        page.get_by_role("button", name="Continue").click(timeout=TIMEOUT_MS)
        page.get_by_role("dialog").get_by_label("Trials in total").fill("3")
        page.get_by_role("dialog").get_by_role("button", name="Continue the study").click()
        expect(page).not_to_have_url(f"{visit.url}/studies/{name}", timeout=TIMEOUT_MS)
        started.append(page.url.partition("/studies/")[2])
        continued = web_client.resolve_run(ref=started[0])["spec"]["study"]
        assert continued["trials"] == 3

        # a fork searches from the beginning
        page.get_by_role("button", name="more actions").click()
        page.get_by_role("menuitem", name="Fork: search again").click()
        page.get_by_role("dialog").get_by_label("Name").fill("again")
        page.get_by_role("dialog").get_by_role("button", name="Search again").click()
        expect(page).not_to_have_url(f"{visit.url}/studies/{started[0]}", timeout=TIMEOUT_MS)
        started.append(page.url.partition("/studies/")[2])
        assert web_client.resolve_run(ref="again")["name"] == started[1]
    finally:
        web_shell.hop("stop", name, *started, "--grace", "0s")

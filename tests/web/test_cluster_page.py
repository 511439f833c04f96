"""The page of the cluster: nodes, queues, the waiting line, the calendar, the timeline and usage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.visit import NARROW, Visit

HOSTILE = "<img src=x onerror=alert(1)>"
NARROW_TABS = ("nodes", "reservations", "timeline")
TIMEOUT_MS = 60_000
TABS = ("nodes", "queues", "waiting", "reservations", "timeline", "usage")


@pytest.fixture
def live_run(web_shell: Shell, web_client: Client) -> Iterator[str]:
    """A live run on the node `box`, beside a run `waits` that waits for all CPUs."""
    web_shell.write("wait.py", "import time\ntime.sleep(3600)\n")
    live = web_shell.detach("--cpus", "1", "wait.py")
    waiting = web_shell.detach("--cpus", "4", "-n", "waits", "wait.py")
    yield live
    web_shell.hop("stop", waiting, live, "--grace", "0s")


def test_each_tab_is_accessible_wide_and_narrow(open_visit: OpenVisit, live_run: str, axe: None) -> None:
    wide, narrow = (open_visit(), TABS), (open_visit(size=NARROW, theme="dark"), NARROW_TABS)
    for visit, tabs in (wide, narrow):
        for tab in tabs:
            page = visit.open(f"/cluster?tab={tab}")
            expect(page.get_by_role("heading", name="Cluster")).to_be_visible()
            expect(page.get_by_role("status", name="loading")).to_have_count(0)
            assert visit.findings() == [], tab


def test_node_shows_its_runs_is_cordoned_and_drained(visit: Visit, live_run: str) -> None:
    page = visit.open("/cluster")
    page.get_by_role("link", name="box open").click()
    runs = page.get_by_role("table", name="runs of the node")
    expect(runs.get_by_role("link", name=live_run)).to_be_visible()
    page.get_by_role("button", name="Cordon…").click()
    page.get_by_label("Reason").fill(HOSTILE)
    page.get_by_role("button", name="Cordon", exact=True).click()
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    page.get_by_role("button", name="Uncordon").click()
    expect(page.get_by_role("button", name="Cordon…")).to_be_visible()
    expect(page.get_by_text(HOSTILE)).to_have_count(0)
    page.get_by_role("button", name="Drain…").click()
    expect(page.get_by_text("asked to save a checkpoint")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.get_by_role("status").filter(has_text="Asked to save and leave")).to_contain_text(live_run)
    expect(runs.get_by_role("link", name=live_run)).to_have_count(0, timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Uncordon").click()
    expect(runs.get_by_role("link", name=live_run)).to_be_visible(timeout=TIMEOUT_MS)


def test_queue_says_why_and_waiting_runs_say_their_reason(visit: Visit, live_run: str) -> None:
    page = visit.open("/cluster?tab=queues")
    page.get_by_role("table", name="queues").get_by_role("link", name="default").click()
    expect(page.get_by_text("and is the only queue.")).to_be_visible()
    page.get_by_role("link", name="Waiting", exact=True).click()
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name="waits", exact=True))
    expect(row).to_contain_text("needs 4 CPUs")


def test_reservation_is_made_and_deleted_on_the_calendar(visit: Visit) -> None:
    start = (datetime.now() + timedelta(days=1)).replace(hour=9, minute=0)
    page = visit.open(f"/cluster?tab=reservations&month={start:%Y-%m}")
    page.get_by_role("button", name="Reserve…").click()
    page.get_by_label("Name").fill("exam")
    page.get_by_label("Start").fill(f"{start:%Y-%m-%dT%H:%M}")
    page.get_by_label("End").fill(f"{start + timedelta(hours=2):%Y-%m-%dT%H:%M}")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("Name users, or choose a queue.")).to_be_visible()
    page.get_by_label("Users").fill("alice")
    page.get_by_role("checkbox", name="box").check()
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("It would be granted on box.")).to_be_visible()
    page.get_by_role("button", name="Reserve", exact=True).click()
    page.get_by_role("button", name="09:00 exam").click()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("button", name="09:00 exam")).to_have_count(0)


def test_timeline_leads_to_runs_and_usage_is_downloaded(visit: Visit, live_run: str) -> None:
    page = visit.open("/cluster?tab=timeline")
    bar = page.get_by_role("group", name="timeline").get_by_role("link", name=live_run)
    expect(bar).to_have_attribute("aria-label", re.compile("running, queue default, no GPU"))
    page.get_by_role("link", name="Usage", exact=True).click()
    expect(page.get_by_role("table", name="usage")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    assert download.value.path().read_text().startswith("since,until,user,attempts,held_s,gpu_s")

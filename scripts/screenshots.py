"""Write a picture of each page and tab of the web UI, at 1440 and 390 pixels, light and dark.

python scripts/screenshots.py FOLDER             # of a server that it starts: first empty, then filled
python scripts/screenshots.py FOLDER --only run  # only the pictures with this in their name
python scripts/screenshots.py FOLDER PATH ...    # these pages of the server of HOPYARD_HOME or of the context
python scripts/screenshots.py --docs             # the pictures of the README and the guides

It reports what axe finds on each page, and errors in the console, and then returns 1. Needs Chromium,
the packages of the tests and the built UI; axe-core comes with `make web`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from hopyard.api_client.local_server import start_server, stop_server
from hopyard.config.home import HOME_VARIABLE, Home
from scripts.screenshot_content import SETTINGS, Content, fill
from tests.web.visit import AXE, CHROMIUM, NARROW, WIDE, Visit, launch

ROOT = Path(__file__).parents[1]
SIZES = (WIDE, NARROW)
THEMES = ("light", "dark")
DOCS = ROOT / "docs" / "images"
DOCS_SIZE = (1280, 800)
MAX_DOCS_BYTES = 200_000
NAVIGATION = ("runs", "new", "studies", "datasets", "cluster", "reports", "settings", "inbox")


@dataclass(frozen=True)
class Shot:
    """A picture: its name, the path of the page, and what is done on the page before it is taken."""

    name: str
    path: str
    prepare: Callable[[Page], None] = lambda _page: None
    is_logged_in: bool = True


def tabs(name: str, path: str, *keys: str) -> list[Shot]:
    joint = "&" if "?" in path else "?"
    return [Shot(f"{name}-{key}", f"{path}{joint}tab={key}") for key in keys]


def list_shots(content: Content) -> list[Shot]:
    """Returns the pictures of a filled server."""
    run, failed = f"/runs/{content.runs[0]}", f"/runs/{content.failed}"
    compare = "/compare?" + "&".join(f"run={each}" for each in content.runs)
    study, report = f"/studies/{content.study}", f"/reports/{content.report}"

    def fill_new(page: Page) -> None:
        code = page.get_by_role("region", name="code")
        code.locator("input[type=file]").first.set_input_files(content.folder)
        page.get_by_role("button", name="Choose other code").wait_for()
        page.get_by_label("Command").fill("python train.py")
        page.get_by_label("the queue's answer").get_by_text("Starts").first.wait_for()

    def select_runs(page: Page) -> None:
        for box in page.get_by_role("row").get_by_role("checkbox").all()[1:4]:
            box.check()

    return [
        Shot("login", "/login", is_logged_in=False),
        Shot("runs", "/runs"),
        Shot("runs-selected", "/runs", select_runs),
        Shot("runs-none-match", "/runs?filter=val_acc+%3E+2"),
        Shot("palette", "/runs", lambda page: page.keyboard.press("Control+k")),
        Shot("keys", "/runs", lambda page: page.keyboard.press("?")),
        *tabs("run", run, "overview", "log", "curves", "media", "checkpoints", "files", "events"),
        *tabs("run-failed", failed, "overview", "log"),
        Shot("run-failed-code", f"{failed}?tab=files&files=code&file=diverge.py&line=12"),
        *tabs("run-live", f"/runs/{content.live}", "overview", "curves"),
        *tabs("run-waiting", f"/runs/{content.waiting}", "overview", "log"),
        Shot("run-missing", "/runs/alice/mnist/999"),
        *tabs("compare", compare, "curves", "table", "scatter", "parallel", "media", "code", "environment"),
        Shot("compare-grouped", f"{compare}&group=params.optimizer&smooth=0.6"),
        Shot("new", "/new"),
        Shot("new-filled", "/new", fill_new),
        Shot("studies", "/studies"),
        *tabs("study", study, "trials", "gantt", "best", "parallel", "importance", "rungs"),
        Shot("study-trial", f"{study}?trial=3"),
        Shot("datasets", "/datasets"),
        *tabs("dataset", "/datasets/mnist", "board", "files", "versions", "runs"),
        Shot("dataset-pictures", "/datasets/mnist?tab=files&folder=train%2F0"),
        *tabs("cluster", "/cluster", "nodes", "queues", "waiting", "reservations", "timeline", "usage"),
        Shot("cluster-node", "/cluster?tab=nodes&node=gpu-01"),
        Shot("cluster-queue", "/cluster?tab=queues&queue=vision"),
        Shot("reports", "/reports"),
        Shot("report", report),
        Shot("report-edited", f"{report}?edit=1"),
        Shot("settings", "/settings"),
        Shot("inbox", "/inbox"),
    ]


def log_in(browser: Browser) -> tuple[str, Any]:
    """Returns the server's address and the cookies of a session."""
    link = subprocess.run(
        [sys.executable, "-m", "hopyard.cli", "ui", "--print"], capture_output=True, text=True, check=True
    ).stdout.strip()
    url = "{0.scheme}://{0.netloc}".format(urlsplit(link))
    visit = Visit(browser, url)
    visit.open(link)
    visit.page.get_by_role("navigation").first.wait_for()
    return url, visit.state()


def wait_until_quiet(page: Page) -> None:
    """Waits until nothing loads any more. The stream of events never ends, so the network is no sign."""
    page.locator("main").wait_for()
    page.wait_for_timeout(300)  # parts that load late come with the next frames
    expect(page.locator("[role=status][aria-label=loading]")).to_have_count(0)
    page.wait_for_timeout(500)  # charts draw in the next frames


class Photographer:
    """Takes the pictures of a server and collects what is wrong on its pages."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.url, self.state = log_in(browser)
        self.faults: list[str] = []
        self._visits: dict[Any, Visit] = {}

    def take(self, shot: Shot, size: tuple[int, int], theme: str, file: Path, *, is_whole: bool) -> None:
        visit = self._visit(size, theme, shot.is_logged_in)
        visit.faults.clear()
        try:
            page = visit.open(shot.path)
            wait_until_quiet(page)
            shot.prepare(page)
            wait_until_quiet(page)
            page.screenshot(path=file, full_page=is_whole)
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            found = [f"{wide} pixels are cut off at the right"] if wide > 0 else []
            found += visit.findings() if AXE.exists() else []
        except (PlaywrightError, AssertionError) as error:  # the other pictures are still taken
            found = [f"no picture: {error}".splitlines()[0]]
        found += visit.faults
        self.faults += [f"{file.name}: {fault}" for fault in found]
        print(file, *found, sep="\n  ", flush=True)

    def take_all(self, shots: list[Shot]) -> None:
        for size in SIZES:
            for theme in THEMES:
                for shot in shots:
                    file = self.folder / f"{shot.name}-{size[0]}-{theme}.png"
                    self.take(shot, size, theme, file, is_whole=True)

    def _visit(self, size: tuple[int, int], theme: str, is_logged_in: bool) -> Visit:
        """Returns the window of this size and theme. One window for all pages reads the scripts once."""
        key = (size, theme, is_logged_in)
        if key not in self._visits:
            state = self.state if is_logged_in else None
            self._visits[key] = Visit(self.browser, self.url, state, size=size, theme=theme)
            self._visits[key].allow(r"status of 40[14]")  # without a session, and of a run that is missing
        return self._visits[key]


@contextmanager
def scratch_server(folder: Path) -> Iterator[Home]:
    """Starts a server with three nodes of GPUs below the folder, and ends it with its runs."""
    home = Home(folder / "home").create()
    home.settings_file.write_text(SETTINGS)
    os.environ[HOME_VARIABLE] = str(home.root)
    start_server(home)
    try:
        yield home
    finally:
        stop_server(home, runs="stop")


def write_docs(taker: Photographer, content: Content) -> None:
    """Writes the pictures of the README and the guides. They are of the light theme, and small files."""
    compare = "/compare?" + "&".join(f"run={each}" for each in content.runs)
    shots = [
        Shot("web-runs", "/runs"),
        Shot("web-compare", f"{compare}&pin=val_acc&pin=train_loss"),
        Shot("web-study", f"/studies/{content.study}?tab=rungs"),
    ]
    for shot in shots:
        file = DOCS / f"{shot.name}.png"
        taker.take(shot, DOCS_SIZE, "light", file, is_whole=False)
        if file.stat().st_size >= MAX_DOCS_BYTES:
            taker.faults.append(f"{file.name} has {file.stat().st_size} bytes, the limit is {MAX_DOCS_BYTES}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--only", default="", help="a part of the names of pictures")
    parser.add_argument("--docs", action="store_true", help="write docs/images/web-*.png")
    given = parser.parse_args()
    if given.folder is None and not given.docs:
        parser.error("name a folder, or use --docs")
    if CHROMIUM is None:
        print("error: chromium is not installed", file=sys.stderr)
        return 1
    folder = given.folder or DOCS
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hopyard-pictures-") as scratch, sync_playwright() as playwright:
        browser = launch(playwright)
        if given.paths:
            taker = Photographer(browser, folder)
            names = [re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-") or "start" for path in given.paths]
            taker.take_all([Shot(*pair) for pair in zip(names, given.paths, strict=True)])
        else:
            with scratch_server(Path(scratch)) as home:
                taker = Photographer(browser, folder)
                empty = [Shot(f"empty-{name}", f"/{name}") for name in NAVIGATION]
                if not given.docs:
                    taker.take_all([shot for shot in empty if given.only in shot.name])
                content = fill(home, Path(scratch))
                if given.docs:
                    write_docs(taker, content)
                else:
                    taker.take_all([shot for shot in list_shots(content) if given.only in shot.name])
        browser.close()
    for fault in taker.faults:
        print("fault:", fault, file=sys.stderr)
    return 1 if taker.faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Write a picture of each page of the web UI at 1440 and 390 pixels, in the light and the dark theme.

python scripts/screenshots.py FOLDER [PATH ...]

Without PATH: the pages of the navigation, and the newest run. They show what is on the server of
HOPYARD_HOME or of the current context. Needs Chromium and the package playwright.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, Page, sync_playwright

from hopyard.api_client.local_server import connect
from tests.web.visit import CHROMIUM, NARROW, WIDE, Visit, launch

SIZES = (WIDE, NARROW)
THEMES = ("light", "dark")


def log_in(browser: Browser) -> tuple[str, object, list[str]]:
    """Returns the server's address, the cookies of a session, and the paths of the pages."""
    link = subprocess.run(
        [sys.executable, "-m", "hopyard.cli", "ui", "--print"], capture_output=True, text=True, check=True
    ).stdout.strip()
    url = "{0.scheme}://{0.netloc}".format(urlsplit(link))
    visit = Visit(browser, url)
    visit.open(link)
    links = visit.page.get_by_role("navigation").get_by_role("listitem").get_by_role("link")
    links.first.wait_for()
    paths = [str(one.get_attribute("href")) for one in links.all()]
    newest = connect(start=False).get("/runs", limit=1)["runs"]
    return url, visit.state(), [*paths, *(f"/runs/{run['id']}" for run in newest)]


def wait_until_quiet(page: Page) -> None:
    """Waits until nothing loads any more. The stream of events never ends, so the network is no sign."""
    page.locator("main").wait_for()
    page.locator("[role=status][aria-label=loading]").wait_for(state="detached")
    page.wait_for_timeout(500)  # charts draw in the next frames


def main(folder: Path, paths: list[str]) -> int:
    if CHROMIUM is None:
        print("error: chromium is not installed", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        url, state, pages = log_in(browser)
        for path in paths or pages:
            name = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-") or "start"
            for size in SIZES:
                for theme in THEMES:
                    visit = Visit(browser, url, state, size=size, theme=theme)
                    wait_until_quiet(visit.open(path))
                    file = folder / f"{name}-{size[0]}-{theme}.png"
                    visit.page.screenshot(path=file)
                    print(file, *visit.faults, sep="\n  ")
        browser.close()
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

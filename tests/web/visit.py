"""A browser that shows the web UI. What no page may ever do is collected, and fails the test at its end."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request

WEB = Path(__file__).parents[2] / "web"
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIMEOUT_MS = 60_000.0
WIDE, NARROW = (1440, 900), (390, 844)
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
_RULES = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter((found) => ['serious', 'critical'].includes(found.impact))
  .map((found) => `${found.id}: ${found.nodes.map((node) => node.target.join(' ')).join(', ')}`)"""


def launch(playwright: Playwright) -> Browser:
    """Starts Chromium with an empty profile, and without requests of its own."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))


class Visit:
    """A browser window on a server's web UI. state: stored cookies; None: not logged in."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        state: Any = None,
        *,
        size: tuple[int, int] = WIDE,
        theme: str = "light",
    ) -> None:
        self.url = url
        self.faults: list[str] = []
        self._allowed: list[re.Pattern[str]] = []
        self._context = browser.new_context(
            base_url=url,
            storage_state=state,
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        self._context.set_default_timeout(TIMEOUT_MS)
        self._context.on("request", self._check_host)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._check_message)
        self.page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))

    def open(self, path: str) -> Page:
        self.page.goto(path)
        return self.page

    def allow(self, pattern: str) -> None:
        """Accepts errors in the console that match, such as those of refused requests."""
        self._allowed.append(re.compile(pattern))

    def state(self) -> Any:
        return self._context.storage_state()

    def findings(self) -> list[str]:
        """Returns what axe finds on the page: rules of serious or critical impact, with the elements."""
        self.page.evaluate(AXE.read_text())
        found: list[str] = self.page.evaluate(_RULES)
        return found

    def close(self) -> None:
        """Closes the window. Raises AssertionError if the page did what no page may do."""
        self._context.close()
        assert not self.faults, "\n".join(self.faults)

    def _check_host(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and not request.url.startswith(self.url):
            self.faults.append(f"request to another host: {request.url}")

    def _check_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(
            allowed.search(message.text) for allowed in self._allowed
        ):
            self.faults.append(f"console {message.type}: {message.text}")

"""One real server with real runs for all tests of the web UI, and windows of a real browser on it.

The tests need Chromium and the built files of the UI, and are skipped without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

import hopyard
from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect, start_server, stop_server
from hopyard.config.home import Home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell
from tests.web.visit import AXE, CHROMIUM, TIMEOUT_MS, Visit, launch

BUILT = Path(hopyard.__file__).parent / "web_ui" / "index.html"
TRAIN = """
import hopyard as hop

p = hop.params(lr=0.1, epochs=5)
for epoch in hop.loop(range(p.epochs)):
    hop.log(train_loss=p.lr / (epoch + 1), val_acc=1 - p.lr / (epoch + 1), step=epoch)
    print(f"epoch {epoch}")
hop.save(epoch)
hop.summary(val_acc=1 - p.lr)
"""
FAIL = "raise RuntimeError('the loss is not a number')\n"

OpenVisit = Callable[..., Visit]


@pytest.fixture(scope="session")
def web_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a server with its web UI."""
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    if not BUILT.exists():
        pytest.skip("the web UI is not built: run `make web`")
    home = Home(tmp_path_factory.mktemp("home"))
    home.settings_file.write_text("node: {id: box, cpus: 4, memory: 8G}\n")
    start_server(home)
    yield home.root
    stop_server(home, runs="stop")


@pytest.fixture(scope="session")
def web_shell(web_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell in a folder with the scripts `train.py` and `fail.py`. Its project is `mnist`."""
    shell = shell_in(tmp_path_factory.mktemp("code") / "mnist", web_home)
    shell.write("train.py", TRAIN)
    shell.write("fail.py", FAIL)
    return shell


@pytest.fixture(scope="session")
def web_client(web_home: Path) -> Client:
    return connect(start=False, home=Home(web_home))


@pytest.fixture(scope="session")
def web_runs(web_shell: Shell, web_client: Client) -> list[str]:
    """Names of ended runs, oldest first: `baseline`, `slow` and `fast` differ in `lr`, `broken` failed.

    They are all runs of the project `baselines`. Other tests add runs to other projects."""
    names = [
        web_shell.detach("-n", label, "--project", "baselines", "--tag", f"team={team}", *words)
        for label, team, words in (
            ("baseline", "vision", ("train.py",)),
            ("slow", "vision", ("-p", "lr=0.01", "train.py")),
            ("fast", "speech", ("-p", "lr=0.5", "train.py")),
            ("broken", "speech", ("fail.py",)),
        )
    ]
    for name in names:
        web_shell.hop("logs", "--follow", name)
    return names


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Closed before a test of another package begins: its event loop counts as running in this thread."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=TIMEOUT_MS)
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def session_state(web_shell: Shell, web_client: Client, browser: Browser) -> Any:
    """The cookies of a browser that the one-time link of `hop ui --print` has logged in."""
    visit = Visit(browser, web_client.url)
    visit.allow("status of 401")  # the browser asks for its session before it has one
    visit.open(web_shell.hop("ui", "--print").text.strip())
    visit.page.get_by_role("navigation").wait_for()
    state = visit.state()
    visit.close()
    return state


@pytest.fixture
def open_visit(browser: Browser, web_client: Client, session_state: Any) -> Iterator[OpenVisit]:
    """Opens logged-in windows: `open_visit(size=NARROW, theme="dark")`. Each is checked at the end."""
    visits: list[Visit] = []

    def open_one(**options: Any) -> Visit:
        visits.append(Visit(browser, web_client.url, session_state, **options))
        return visits[-1]

    yield open_one
    for visit in visits:
        visit.close()


@pytest.fixture
def visit(open_visit: OpenVisit) -> Visit:
    """A logged-in window of 1440 pixels in the light theme."""
    return open_visit()


@pytest.fixture
def axe() -> None:
    """Skips the test where axe-core is absent."""
    if not AXE.exists():
        pytest.skip("needs axe-core: run `make web`")

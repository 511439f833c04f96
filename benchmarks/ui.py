"""How quick the web UI is in headless Chromium, beside the pages of MLflow and trackio with the same runs.

    python -m benchmarks.ui [--runs 10000] [--live 100] [--curves 100] [--points 10000]
                            [--nodes 1000] [--waiting 10000] [--trials 10000] [--lines 1000]

The runs are written through the stores of a home. Live ones log a point every two seconds meanwhile. A page
is usable when its content is drawn: the newest run is in the table, all curves are in the chart. An
interaction lasts from the event of the browser (a key, a click) to the frame that shows its result. All
times are of the browser's own clock. The pages of a large cluster and of large studies get answers that
`benchmarks.ui_pages` makes, so these times are without a server.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

import hopyard
from benchmarks.harness import Arguments, Report, alternate_many, main, say
from benchmarks.local_server import LocalServer, local_server, scratch_folder
from benchmarks.peers.find import PeerPython
from benchmarks.ui_pages import PageSizes, answer_large
from benchmarks.ui_runs import METRIC, RunCounts, UiRuns, fill, live_reports
from hopyard.config.home import Home
from hopyard.errors import SpecError

NAME = "ui"
MB, KB, TIMEOUT_MS = 1_000_000, 1000, 60_000.0
PEERS = {  # when the page counts as usable
    "mlflow": (
        "/[1-9]\\d* matching runs/.test(document.body?.innerText)",
        "until the number of matching runs is drawn, before the rows",
    ),
    "trackio": (
        "document.body?.innerText.includes('trial-')",
        "until names of runs are drawn, before the curves",
    ),
}
CHART_FILES = ("chart", "uPlot")  # in the names of files that only pages with charts load
_IN_PEER = Path(__file__).parent / "peers" / "in_ui.py"
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
# `usable(shows)` returns the time from the request of the page until `shows()` holds. `watch(shows)` waits
# for the first event of the user, then for `shows()`. A task after a frame runs when the frame is drawn.
_CLOCK = """
const drawn = (shows, done) => requestAnimationFrame(() => {
  if (shows()) setTimeout(() => done(performance.now()));
  else drawn(shows, done);
});
const atMost2min = (shows, promise) => Promise.race([
  promise,
  new Promise((_, fail) => setTimeout(() => fail(new Error(`not drawn in 2 min: ${shows}`)), 120000)),
]);
window.usable = (shows) => atMost2min(shows, new Promise((done) => drawn(shows, done)));
window.watch = (shows) => {
  window.took = atMost2min(shows, new Promise((done) => {
    const begin = (event) => {
      for (const kind of ["keydown", "pointerdown", "wheel"]) removeEventListener(kind, begin, true);
      drawn(shows, (end) => done(end - event.timeStamp));
    };
    for (const kind of ["keydown", "pointerdown", "wheel"]) addEventListener(kind, begin, true);
  }));
};
"""
# `column(name)` returns the numbers in that column of the drawn rows, from the top.
_COLUMN = """
window.column = (name) => {
  const heads = [...document.querySelectorAll("[role=grid] [role=columnheader]")];
  const place = heads.findIndex((head) => head.textContent.startsWith(name));
  return [...document.querySelectorAll("[role=grid] [role=row][id]")]
    .sort((one, other) => one.ariaRowIndex - other.ariaRowIndex)
    .map((row) => Number(row.querySelectorAll("[role=gridcell]")[place].textContent));
};
"""
_FIRST_ROW = "document.querySelector('[role=grid] [aria-rowindex=\"2\"]')"
_NOT_BUSY = "document.querySelector('[aria-busy=true]') === null"


class Window:
    """A page of the browser, with a clock in it."""

    def __init__(self, browser: Browser, url: str, state: object = None) -> None:
        self.context = browser.new_context(
            base_url=url,
            storage_state=state,  # type: ignore[arg-type]  # what storage_state() returned
            viewport={"width": 1440, "height": 900},
        )
        self.context.set_default_timeout(TIMEOUT_MS)
        self.context.add_init_script(_CLOCK + _COLUMN)
        self.page: Page = self.context.new_page()

    def usable(self, path: str, shows: str) -> float:
        """Opens a page. Returns the milliseconds until the expression `shows` holds and is drawn."""
        self.page.goto(path, wait_until="commit")
        return float(self.page.evaluate(f"() => usable(() => {shows})"))

    def took(self, shows: str, act: Callable[[Page], object]) -> float:
        """Returns the milliseconds from the first event of `act` until the result is drawn."""
        self.page.evaluate(f"() => watch(() => {shows})")
        act(self.page)
        return float(self.page.evaluate("() => window.took"))

    def close(self) -> None:
        self.context.close()


class HopyardPages:
    """The pages of the web UI of a server with many runs."""

    def __init__(self, browser: Browser, server: LocalServer, runs: UiRuns, sizes: PageSizes) -> None:
        self._browser, self._server, self._runs, self._sizes = browser, server, runs, sizes
        self._answers: dict[str, bytes] = {}
        self.url = server.client.url
        context = browser.new_context(base_url=self.url)
        page = context.new_page()
        page.goto(server.client.create_session_link()["link"])
        page.get_by_role("navigation").wait_for()
        self._state = context.storage_state()
        context.close()

    def measure(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in (self._table, self._long_table, self._curves, self._large):
            window = Window(self._browser, self.url, self._state)
            try:
                found |= part(window)
            finally:
                window.close()
        found["memory"] = psutil.Process(self._server.pid).memory_info().rss / MB
        return found

    def _table(self, window: Window) -> dict[str, float]:
        loaded = set[str]()
        window.page.on("response", lambda answer: loaded.add(answer.url))
        found = {"first_page": window.usable("/runs", _FIRST_ROW)}
        found["first_page_kb"] = compressed_kb([url.rpartition("/")[2] for url in loaded])
        page = window.page
        falling = "column('val_acc').every((value, row, all) => row === 0 || all[row - 1] >= value)"
        ordered = f"{_NOT_BUSY} && {_FIRST_ROW} !== null && {falling}"
        head = page.get_by_role("columnheader", name="val_acc").get_by_role("button").first
        found["sort"] = window.took(ordered, lambda _: head.click())
        page.get_by_label("filter", exact=True).click()
        found["type"] = window.took(
            "document.activeElement.value === 'v'", lambda page: page.keyboard.press("v")
        )
        page.keyboard.type("al_acc > 0.99")
        few = f"{_NOT_BUSY} && {_FIRST_ROW} !== null && column('val_acc').every((value) => value >= 0.995)"
        found["filter"] = window.took(
            f"location.search.includes('0.995') && {few}", lambda page: page.keyboard.press("5")
        )
        return found

    def _long_table(self, window: Window) -> dict[str, float]:
        """Measures with all rows loaded."""
        page = window.page
        window.usable("/runs", _FIRST_ROW)
        grid = page.get_by_role("grid")
        while grid.get_attribute("aria-rowcount") == "-1":
            grid.evaluate("(grid) => grid.scrollTo(0, grid.scrollHeight)")
            page.wait_for_timeout(20)
        grid.evaluate("(grid) => grid.scrollTo(0, 0)")
        page.locator("[role=grid] [aria-rowindex='2']").wait_for()
        found = {}
        box = page.locator("[aria-rowindex='3'] input[type=checkbox]")
        found["select"] = window.took(
            "document.querySelector('[aria-rowindex=\"3\"]')?.ariaSelected === 'true'",
            lambda _: box.click(),
        )
        found["next_row"] = window.took(
            "document.querySelector('[aria-rowindex=\"4\"]')?.dataset.active === ''",
            lambda page: page.keyboard.press("ArrowDown"),
        )
        last = int(grid.get_attribute("aria-rowcount") or "0")
        found["last_row"] = window.took(
            f"document.querySelector('[aria-rowindex=\"{last}\"]')?.dataset.active === ''",
            lambda page: page.keyboard.press("End"),
        )
        grid.hover()
        found["scroll"] = window.took(
            f"document.querySelector('[aria-rowindex=\"{max(2, last - 100)}\"]')",
            lambda page: page.mouse.wheel(0, -3000),
        )
        return found

    def _curves(self, window: Window) -> dict[str, float]:
        address = "/compare?" + urlencode([("run", run) for run in self._runs.curves])
        label = f'[aria-label^="{METRIC} by"][aria-label$=" {len(self._runs.curves)} curves"]'
        curves = f"document.querySelector('{label} canvas')"
        found = {"compare": window.usable(address, f"{_NOT_BUSY} && {curves}")}
        smoothing = window.page.get_by_label("Smoothing")
        smoothing.focus()
        found["smooth"] = window.took(
            "document.querySelector('output').textContent === '0.01'",
            lambda page: page.keyboard.press("ArrowRight"),
        )
        found["log_axis"] = window.took(
            f"location.search.includes('log') && {_NOT_BUSY}", lambda page: page.get_by_label("Log y").click()
        )
        return found

    def _large(self, window: Window) -> dict[str, float]:
        """Measures the pages of a large cluster and of large studies."""
        with self._server.client.open("GET", "/runs?limit=1") as answer:
            row = json.loads(answer.read())["runs"][0]
        answer_large(window.context, self._sizes, row, self._answers)
        page = window.page
        found = {"nodes": window.usable("/cluster", "document.querySelector('[aria-label=nodes] a')")}
        page.get_by_label("Colour").focus()
        found["nodes_colour"] = window.took(
            "location.search.includes('colour=temperature')", lambda page: page.keyboard.press("ArrowDown")
        )
        page.get_by_label("filter of nodes").focus()
        found["nodes_filter"] = window.took(
            "location.search.includes('filter=7')", lambda page: page.keyboard.press("7")
        )
        row_of = "document.querySelector('table[aria-label=\"{}\"] tbody td')".format
        found["waiting"] = window.usable("/cluster?tab=waiting", row_of("waiting runs"))
        found["trials"] = window.usable("/studies/long", row_of("trials"))
        head = page.get_by_role("columnheader", name="dropout").get_by_role("button")
        found["trials_sort"] = window.took(
            "document.querySelector('th[aria-sort]')?.textContent.includes('dropout')", lambda _: head.click()
        )
        found["parallel"] = window.usable(
            "/studies/lines?tab=parallel", "document.querySelector('main canvas')"
        )
        return found


def built_files() -> list[Path]:
    """Returns the scripts and styles of the built web UI. Raises SpecError without them."""
    files = [*(Path(hopyard.__file__).parent / "web_ui" / "assets").glob("*.*s")]
    if not files:
        raise SpecError("the web UI is not built", hints=("run `make web`",))
    return files


def compressed_kb(names: Sequence[str] | None = None) -> float:
    """Returns the kilobytes of built files, compressed with gzip: of these names, or of all that are not
    only for charts."""
    return (
        sum(
            len(gzip.compress(path.read_bytes(), 9))
            for path in built_files()
            if (
                path.name in names
                if names is not None
                else not any(word in path.name for word in CHART_FILES)
            )
        )
        / KB
    )


def wait_until_listening(port: int, *, timeout_s: float = 300) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.1)


@contextlib.contextmanager
def peer_page(peer: str, peers: PeerPython, folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """Writes the same runs for a peer, and serves its UI. Yields the address of the page of the runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(n) for n in (options.runs, options.curves, options.points, port)]
    process = subprocess.Popen(
        [peers.executable, _IN_PEER, peer, folder, *words],
        stdout=subprocess.PIPE,
        stderr=(folder.parent / f"{peer}.log").open("wb"),
        text=True,
    )
    try:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        if not path:
            log = (folder.parent / f"{peer}.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{peer} has not started\n{log}")
        wait_until_listening(port)
        yield f"http://127.0.0.1:{port}{path}"
    finally:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def peer_measure(browser: Browser, peer: str, url: str, shows: str) -> Callable[[], Mapping[str, float]]:
    """Measures until the expression `shows` holds on the peer's page of all runs."""

    def measure() -> dict[str, float]:
        window = Window(browser, url)
        try:
            return {f"{peer}_first_page": window.usable(url, shows)}
        finally:
            window.close()

    return measure


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    settings = {k: v for k, v in vars(options).items() if k not in ("peer", "peer_python", "json")}
    report = Report(NAME, settings)
    counts = RunCounts(options.runs, options.live, options.curves, options.points)
    sizes = PageSizes(options.nodes, options.waiting, options.trials, options.lines)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SpecError("Chromium is not installed", hints=("install the package `chromium`",))
    bundle = compressed_kb()
    versions = {} if peers is None else peers.versions(*PEERS)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        say(f"writes {counts.runs} runs")
        runs = fill(Home(folder / "home").create(), counts)
        server = stack.enter_context(local_server(folder))
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=chromium,
            args=list(_FLAGS),
            env={**os.environ, "TMPDIR": "/tmp"},  # its socket's path has at most 107 characters
        )
        stack.callback(browser.close)
        sides: list[Callable[[], Mapping[str, float]]] = [HopyardPages(browser, server, runs, sizes).measure]
        for peer in versions:
            say(f"writes the runs of {peer}")
            url = stack.enter_context(peer_page(peer, peers, folder / peer, options))  # type: ignore[arg-type]
            sides.append(peer_measure(browser, peer, url, PEERS[peer][0]))
        stack.enter_context(live_reports(server.client, runs.live))
        found = alternate_many(options.repeats, sides)
    for name, (unit, note) in FIGURES.items():
        report.add(name, unit, found[name], note=note)
    report.add("bundle", "kB", (bundle,), note="scripts and styles, without those of charts, gzip")
    report.peers = versions
    for peer in versions:
        report.add(f"{peer}_first_page", "ms", found[f"{peer}_first_page"], "peer", PEERS[peer][1])
    return report


FIGURES = {
    "first_page": ("ms", "the page of runs, from its request until rows are drawn, nothing cached"),
    "first_page_kb": ("kB", "scripts and styles that this page loads, gzip"),
    "sort": ("ms", "a click sorts all runs by a metric: rows in that order are drawn"),
    "type": ("ms", "a key in the filter box: the letter is drawn"),
    "filter": ("ms", "the last key of `val_acc > 0.995`: the runs that match are drawn"),
    "select": ("ms", "a click selects a row, all rows are loaded"),
    "next_row": ("ms", "ArrowDown, all rows are loaded"),
    "last_row": ("ms", "End: the last of all rows is drawn"),
    "scroll": ("ms", "the wheel: rows that were far outside are drawn"),
    "compare": ("ms", "the page of all curves, from its request until they are drawn"),
    "smooth": ("ms", "a key at the slider of smoothing: all curves are drawn again"),
    "log_axis": ("ms", "a click: the chart is drawn with a logarithmic axis"),
    "nodes": ("ms", "the page of all nodes with their GPUs, until they are drawn"),
    "nodes_colour": ("ms", "a key: the GPUs have the colours of their temperatures"),
    "nodes_filter": ("ms", "a key in the filter of nodes: those that match are drawn"),
    "waiting": ("ms", "the page of waiting runs, until the first ones are drawn"),
    "trials": ("ms", "the page of a study, until its trials are drawn"),
    "trials_sort": ("ms", "a click sorts all trials by a param"),
    "parallel": ("ms", "parallel coordinates of a study, until its lines are drawn"),
    "memory": ("MB", "resident set of the server"),
}


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--runs", type=int, default=10_000, help="runs, with the live ones")
    parser.add_argument("--live", type=int, default=100, help="live runs, which report meanwhile")
    parser.add_argument("--curves", type=int, default=100, help="compared runs, at most 100")
    parser.add_argument("--points", type=int, default=10_000, help="points of each compared run")
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of 8 GPUs on the page of the cluster")
    parser.add_argument("--waiting", type=int, default=10_000, help="runs on the page of waiting runs")
    parser.add_argument("--trials", type=int, default=10_000, help="trials in the table of a study")
    parser.add_argument("--lines", type=int, default=1000, help="trials in parallel coordinates")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    options = parser.parse_args(argv)
    if not 2 <= options.curves <= min(100, options.runs - options.live):
        parser.error("--curves: from 2 to 100, and not more than the runs that have ended")
    if min(options.nodes, options.waiting, options.trials, options.lines) < 2:
        parser.error("--nodes, --waiting, --trials, --lines: at least 2")
    return main(NAME, parser, measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())

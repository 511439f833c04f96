"""A shell and a Python prompt of a live run in a browser."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell
from tests.web.conftest import OpenVisit
from tests.web.run_scripts import LIVE
from tests.web.visit import NARROW, Visit

KEY = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}


@pytest.fixture(scope="module")
def live(web_shell: Shell) -> Iterator[str]:
    """The name of a live run with safe points."""
    web_shell.write("live.py", LIVE)
    name = web_shell.detach("-n", "for-consoles", "--project", "consoles", "live.py")
    yield name
    web_shell.hop("stop", name, "--grace", "0")


def test_shell_has_a_real_terminal_and_stays_while_other_tabs_are_shown(visit: Visit, live: str) -> None:
    page = visit.open(f"/runs/{live}?tab=console")
    page.get_by_role("button", name="Open a shell").click()
    screen = page.locator(".xterm-rows")
    page.get_by_role("textbox", name="Terminal input").type(
        "echo $((6*7)) live*; tty; printf '\\033[38;2;200;0;0mr%s\\033[0m\\n' ed\n"
    )
    expect(screen).to_contain_text("42 live.py")
    expect(screen).to_contain_text("/dev/pts/")
    # colours come through the content policy of the page, which allows no style attribute
    expect(screen.get_by_text("red", exact=True)).to_have_css("color", "rgb(200, 0, 0)")
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("link", name="Console").click()
    expect(screen).to_contain_text("42 live.py")
    page.set_viewport_size({"width": 800, "height": 700})
    page.get_by_role("textbox", name="Terminal input").type("stty size | tr ' ' x; exit 3\n")
    expect(screen).to_contain_text(re.compile(r"\d+x\d\d(?!\d)"))
    expect(page.get_by_role("status").filter(has_text="with exit code 3")).to_be_visible()
    page.get_by_role("button", name="Open again").click()
    expect(screen).not_to_contain_text("42 live.py")
    page.get_by_role("textbox", name="Terminal input").press("F6")
    expect(page.get_by_role("textbox", name="Terminal input")).not_to_be_focused()
    assert visit.findings() == []
    page.get_by_role("button", name="End it").click()
    expect(page.get_by_role("button", name="Open a shell")).to_be_visible()


def test_prompt_evaluates_completes_and_sets(open_visit: OpenVisit, live: str, web_client: Client) -> None:
    visit = open_visit(size=NARROW, theme="dark")
    page = visit.open(f"/runs/{live}?tab=console&kind=python")
    page.get_by_role("button", name="Open a prompt").click()
    log, python = page.get_by_role("log"), page.get_by_role("textbox", name="Python")
    expect(log).to_contain_text("Training continues between statements")
    expect(python).to_be_focused()
    python.fill("for i in (20, 22):")
    python.press("Enter")
    python.type("    print(i + p.lr)\n\n")
    expect(log).to_contain_text("20.1\n22.1")
    python.fill("1/0")
    python.press("Enter")
    expect(log).to_contain_text("ZeroDivisionError")
    python.fill("p.step")
    python.press("Tab")
    expect(python).to_have_value("p.steps")
    python.fill("a = 3\nb = 4\nprint(a * b)")
    page.get_by_role("button", name="Evaluate").click()
    expect(log).to_contain_text("12")
    python.fill("p.lr = 0.05")
    python.press("Enter")
    expect(log).to_contain_text("applied at step")
    assert web_client.resolve_run(ref=live)["params"]["lr"] == 0.05
    python.press("ArrowUp")
    expect(python).to_have_value("p.lr = 0.05")
    assert visit.findings() == []
    page.get_by_role("button", name="End it").click()


def test_run_that_has_ended_says_why_there_is_no_console(visit: Visit, web_runs: list[str]) -> None:
    page = visit.open(f"/runs/{web_runs[0]}?tab=console")
    expect(page.get_by_text("The run has ended. A console is open while it runs")).to_be_visible()


def test_websocket_needs_the_page_of_this_server(
    live: str, web_client: Client, session_state: dict[str, Any]
) -> None:
    """A page of another origin can open a WebSocket with the cookie, but no console."""
    address = urlsplit(web_client.url)
    cookie = "; ".join(f"{each['name']}={each['value']}" for each in session_state["cookies"])
    run = web_client.resolve_run(ref=live)["id"]

    def request(method: str, path: str, headers: dict[str, str], body: str | None = None) -> Any:
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        if response.status == 101:
            return response, connection.sock
        text = response.read().decode()
        connection.close()
        return response, text

    own = {"Cookie": cookie, "Origin": web_client.url.rstrip("/")}
    csrf = re.search(r'"csrf":\s*"([^"]+)"', request("GET", "/api/v1/session", own)[1])
    assert csrf is not None
    change = {**own, "X-Hopyard-Session": csrf[1], "Content-Type": "application/json"}
    opened = request("POST", f"/api/v1/runs/{run}/consoles", change, '{"kind": "exec", "command": ["cat"]}')[
        1
    ]
    path = re.search(r'"path":\s*"([^"]+)"', opened)
    assert path is not None, opened
    socket = {"Upgrade": "websocket", "Connection": "Upgrade", **KEY}
    for headers, status in (
        ({**socket, "Cookie": cookie, "Origin": "http://elsewhere.example"}, 403),
        ({**socket, "Cookie": cookie}, 403),
        ({**socket, "Origin": own["Origin"]}, 401),
        ({"Upgrade": "tcp", "Connection": "Upgrade", **own}, 401),
        ({"Upgrade": "websocket", "Connection": "Upgrade", **own}, 400),
    ):
        assert request("GET", path[1], headers)[0].status == status, headers

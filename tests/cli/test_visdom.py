"""`hop visdom` with the real Visdom, and what the runs of its user and of others reach of it."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from hopyard.api_client.client import Client
from hopyard.api_client.run_access import read_run_access
from hopyard.config.home import Home
from hopyard.domain.run_port import VISDOM_NAME, VISDOM_PORT
from hopyard.errors import Forbidden, NotFound
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell, wait_until

STAND_IN = """
import asyncio, os, sys
from pathlib import Path

async def serve(reader, writer):
    while head := await reader.readuntil(b"\\r\\n\\r\\n"):
        body = sys.argv[1].encode() + b" " + head.split(b" ")[1]
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
        await writer.drain()

async def main():
    os.chdir(Path(os.environ["HOPYARD_SOCKET_VISDOM"]).parent)
    await asyncio.start_unix_server(serve, "8097.sock")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
ASKS = """
import os, sys, time
from http.client import HTTPConnection
from urllib.parse import urlsplit

place = urlsplit(os.environ.get("HOPYARD_VISDOM", ""))
print("address:", place.geturl(), flush=True)

def ask(*paths):
    connection = HTTPConnection(place.netloc, timeout=120)
    try:
        for path in paths:
            connection.request("GET", path)
            response = connection.getresponse()
            yield response.status, response.read().decode()
    except OSError:
        yield None
    finally:
        connection.close()

if place.netloc:
    print("asked:", list(ask(place.path + "/env", place.path + "/next")), flush=True)
    for path in ("/", "/env", "/-/guess/env", place.path[:-1] + "/", place.path + "x/"):
        print("closed:", list(ask(path)), flush=True)
while True:
    if place.netloc and any(answer and "second" in answer[1] for answer in ask(place.path + "/")):
        print("follows", flush=True)
    time.sleep(0.2)
"""
PLOTS = """
import os, sys
os.environ.update(http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9")
import visdom

given = dict(server="localhost", port=8097) if sys.argv[1:] else {}
client = visdom.Visdom(raise_exceptions=True, env="curves", **given)
assert client.socket_alive and client.check_connection()
client.line([3.0, 1.0], [0, 1], win="loss" + "".join(sys.argv[1:]))
"""


def _output(shell: Shell, run: str) -> str:
    return shell.hop("logs", run).text


def _run_client(home: Path, run: str) -> Client:
    """Returns a client with the token of a live run. run: its id."""
    specs = (path for path in Home(home).attempts.rglob("spec.json") if run in str(path.parent))
    return read_run_access(next(specs).parent).client()


def test_runs_reach_the_visdom_of_their_user_only(
    shell: Shell, client: Client, served_home: Path, tmp_path: Path
) -> None:
    path = f"ports/{VISDOM_PORT[0]}/"
    shell.write("server.py", STAND_IN)
    shell.write("ask.py", ASKS)
    options = ("--project", VISDOM_NAME, "-n", VISDOM_NAME, "--port", "visdom=8097", "server.py", "--")

    def serve(name: str) -> str:
        run = shell.detach(*options, name)
        wait_until(lambda: "ready" in _output(shell, run))
        return run

    early = shell.detach("ask.py")
    wait_until(lambda: "address: \n" in _output(shell, early))
    first = serve("first")
    asking = shell.detach("ask.py")
    wait_until(lambda: _output(shell, asking).count("closed:") == 5)
    secret = urlsplit(_output(shell, asking).split()[1]).path
    lines = _output(shell, asking).splitlines()
    assert lines[1] == f"asked: [(200, 'first {secret}/env'), (200, 'first {secret}/next')]"
    assert set(lines[2:]) == {"closed: [(404, '')]"}
    assert len(secret) > 40

    password = shell.hop("user", "add", "mallory").text.strip()
    other = shell_in(tmp_path / "other", served_home)
    other.environment |= {"HOPYARD_URL": client.url, "HOPYARD_TOKEN": password}
    other.write("ask.py", ASKS)
    foreign = other.detach("ask.py")
    wait_until(lambda: "address: \n" in _output(other, foreign))
    ids = {name: client.resolve_run(ref=name)["id"] for name in (first, asking, early, foreign)}
    foreign_client = _run_client(served_home, ids[foreign])
    with pytest.raises(NotFound, match="no Visdom server of mallory"):
        foreign_client.open_tcp(f"/runs/{ids[foreign]}/{path}")
    for name in (first, asking):
        with pytest.raises(Forbidden):
            foreign_client.open_tcp(f"/runs/{ids[name]}/{path}")
    own_client = _run_client(served_home, ids[asking])
    own_client.open_tcp(f"/runs/{ids[asking]}/{path}").close()
    for name in (first, early):  # not at another address, even of the same user
        with pytest.raises(Forbidden):
            own_client.open_tcp(f"/runs/{ids[name]}/{path}")
    with pytest.raises(Forbidden):  # no link for a browser
        own_client.create_run_port(ids[asking], {"port": "visdom"})

    assert shell.hop("stop", first).code == 0
    second = serve("second")  # the address of a live run leads to it
    wait_until(lambda: "follows" in _output(shell, asking))
    assert shell.hop("stop", second, asking, early).code == 0
    assert other.hop("stop", foreign).code == 0


class Page:
    """The page of a Visdom run behind the server."""

    def __init__(self, client: Client, run: Any, token: str) -> None:
        self._netloc = urlsplit(client.url).netloc
        self._headers = {"Authorization": f"Bearer {token}"}
        self._path = client.create_run_port(run["id"], {"port": VISDOM_PORT[0]})["path"]

    def html(self) -> str:
        connection = HTTPConnection(self._netloc, timeout=120)
        connection.request("GET", self._path, headers=self._headers)
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()

    def windows(self, env: str) -> set[str]:
        connection = HTTPConnection(self._netloc, timeout=120)
        body = json.dumps({"eid": env, "win": None})
        connection.request("POST", f"{self._path}win_data", body, self._headers)
        response = connection.getresponse()
        assert response.status == 200
        return set(json.loads(response.read()))

    async def first_message(self) -> str:
        """Returns what the page gets first on its WebSocket."""
        url = f"ws://{self._netloc}{self._path}socket"
        socket = await websocket_connect(HTTPRequest(url, headers=self._headers))
        async with asyncio.timeout(120):
            message = await socket.read_message()
        socket.close()
        return str(message)


def test_visdom_shows_the_plots_of_runs_and_keeps_them(
    shell: Shell, client: Client, served_home: Path
) -> None:
    pytest.importorskip("visdom", reason="visdom is not in the pins: its build needs an older setuptools")
    token = (served_home / "token").read_text().strip()
    opened = shell.hop("visdom", "--json").json
    assert opened["link"].startswith("http://p8097-")
    run = opened["run"]
    again = shell.hop("visdom", "--json")
    assert (again.json["run"]["id"], "serves Visdom already" in again.stderr_text) == (run["id"], True)
    page = Page(client, run, token)
    assert "user/style.css" in page.html()
    assert "register" in asyncio.run(page.first_message())
    shell.write("plots.py", PLOTS)
    for words in ((), ("--", "given")):
        plotted = shell.hop("run", "plots.py", *words)
        assert plotted.code == 0, plotted.stderr_text + plotted.text
    assert page.windows("curves") == {"loss", "lossgiven"}
    assert shell.hop("stop", run["name"]).code == 0
    wait_until(lambda: shell.hop("info", run["name"], "--json").json["phase"] == "cancelled")
    second = shell.hop("visdom", "--json").json["run"]
    assert second["id"] != run["id"]
    assert Page(client, second, token).windows("curves") == {"loss", "lossgiven"}
    assert shell.hop("stop", second["name"]).code == 0


def test_interpreter_without_visdom_is_refused(shell: Shell, tmp_path: Path) -> None:
    python = tmp_path / "bare" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/sh")
    bare = shell.hop("visdom", "--python", str(python))
    assert (bare.code, "visdom is not installed" in bare.stderr_text) == (2, True)
    assert "hint: echo 'setuptools<81'" in bare.stderr_text
    for name in ("3.12", "", "no/such/python"):
        refused = shell.hop("visdom", "--python", name)
        assert (refused.code, "--python: " in refused.stderr_text) == (2, True)

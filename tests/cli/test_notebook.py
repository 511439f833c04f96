"""`hop notebook` with a real JupyterLab."""

from __future__ import annotations

import asyncio
import json
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from hopyard.api_client.client import Client
from tests.cli.shell import Shell, wait_until

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
CODE = "import hopyard, sys; print(hopyard.__name__, sys.prefix)"


class Lab:
    """A client of Jupyter's API behind the server."""

    def __init__(self, client: Client, path: str, token: str) -> None:
        self._netloc, self._path = urlsplit(client.url).netloc, path
        self.headers = {"Authorization": f"Bearer {token}"}
        connection = self._request("GET", "lab")
        cookies = connection.headers.get_all("Set-Cookie") or []
        xsrf = next(cookie.partition(";")[0] for cookie in cookies if cookie.startswith("_xsrf="))
        self.headers |= {"Cookie": xsrf, "X-XSRFToken": xsrf.partition("=")[2]}

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        connection = HTTPConnection(self._netloc, timeout=120)
        connection.request(
            method, self._path + path, None if body is None else json.dumps(body), self.headers
        )
        response = connection.getresponse()
        assert response.status < 300, (response.status, response.read())
        return response

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self._request(method, path, body).read())

    async def execute(self, kernel: str, code: str) -> str:
        """Returns what the code prints in a kernel."""
        url = f"ws://{self._netloc}{self._path}api/kernels/{kernel}/channels"
        socket = await websocket_connect(HTTPRequest(url, headers=self.headers))
        header = {
            "msg_id": "1",
            "msg_type": "execute_request",
            "username": "",
            "session": "s",
            "version": "5",
        }
        message = {"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": []}
        content = {"code": code, "silent": False, "store_history": False, "stop_on_error": True}
        await socket.write_message(json.dumps({**message, "content": content}))
        async with asyncio.timeout(120):
            while True:
                answer = json.loads(await socket.read_message() or "")
                if answer["msg_type"] in ("stream", "error"):
                    socket.close()
                    return str(answer["content"])


def test_notebook_runs_in_the_environment_of_the_run_and_its_files_are_kept(
    shell: Shell, client: Client, served_home: Path
) -> None:
    token = (served_home / "token").read_text().strip()
    shell.write("nb.ipynb", json.dumps(NOTEBOOK))
    opened = shell.hop("notebook", "nb.ipynb", "--json").json
    assert opened["link"].startswith("http://p8888-")
    run = opened["run"]
    assert run["spec"]["roles"][0]["command"][-1] == "nb.ipynb"
    path = client.create_run_port(run["id"], {"port": "lab"})["path"]
    lab = Lab(client, path, token)
    kernel = lab.call("POST", "api/kernels", {"name": "python3"})["id"]
    assert f"hopyard {sys.prefix}" in asyncio.run(lab.execute(kernel, CODE))
    lab.call("PUT", "api/contents/made.ipynb", {"type": "notebook", "content": NOTEBOOK})
    assert shell.hop("stop", run["name"]).code == 0
    wait_until(lambda: shell.hop("info", run["name"], "--json").json["phase"] == "cancelled")
    assert [file["path"] for file in shell.hop("files", run["name"], "--json").json] == ["made.ipynb"]


def test_notebook_that_cannot_be_opened_is_refused(shell: Shell, tmp_path: Path) -> None:
    shell.write("a.py", "")
    missing = shell.hop("notebook", "none.ipynb")
    assert (missing.code, "none.ipynb: no such notebook" in missing.stderr_text) == (2, True)
    assert "a.py is not a notebook" in shell.hop("notebook", "a.py").stderr_text
    python = tmp_path / "bare" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    bare = shell.hop("notebook", "--python", str(python))
    assert (bare.code, "jupyterlab is not installed" in bare.stderr_text) == (2, True)

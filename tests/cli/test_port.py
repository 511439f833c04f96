"""Ports of runs through a real server: HTTP, WebSocket, TCP, links for browsers, and rights."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from hopyard.api_client.client import Client
from hopyard.client.port_forward import LOCAL_HOST, PortForward, listen_locally
from hopyard.engines.local.ports import choose_port
from hopyard.errors import Conflict
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell, wait_until

SERVER = """
import asyncio, hashlib, json, os, sys
from tornado.web import Application, RequestHandler, stream_request_body
from tornado.websocket import WebSocketHandler

class Head(RequestHandler):
    def get(self):
        self.set_cookie("script", "1", domain="localhost")
        self.write({"uri": self.request.uri, "headers": dict(self.request.headers)})

@stream_request_body
class Upload(RequestHandler):
    def prepare(self):
        self.request.connection.set_max_body_size(10**9)
        self.digest = hashlib.sha256()
    def data_received(self, chunk):
        self.digest.update(chunk)
    def post(self):
        self.write(self.digest.hexdigest())

class Stream(RequestHandler):
    async def get(self):
        self.write("first\\n")
        await self.flush()
        await proceed.wait()
        self.write("second\\n")

class Proceed(RequestHandler):
    def get(self):
        proceed.set()

class Cut(RequestHandler):
    async def get(self):
        self.set_header("Content-Length", "100")
        self.write("part")
        await self.flush()
        self.request.connection.stream.close()

class Echo(WebSocketHandler):
    def select_subprotocol(self, offered):
        return offered[-1] if offered else None
    def on_message(self, message):
        if message == "close":
            self.close(4001, "as requested")
        else:
            self.write_message(message, binary=isinstance(message, bytes))

async def main():
    global proceed
    proceed = asyncio.Event()
    pages = [("/upload", Upload), ("/stream", Stream), ("/proceed", Proceed), ("/cut", Cut), ("/echo", Echo)]
    Application([*pages, ("/.*", Head)]).listen(int(os.environ["PORT"]), "127.0.0.1")
    print(sys.argv[1:], os.environ["PORT"], os.environ["HOPYARD_PORT_WEB"], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
PRIVATE_SERVER = """
import asyncio, os
from pathlib import Path

async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 7\\r\\n\\r\\nprivate")
    await writer.drain()
    writer.close()

async def main():
    os.chdir(Path(os.environ["HOPYARD_SOCKET_WEB"]).parent)  # the address of a socket is short
    await asyncio.start_unix_server(serve, Path(os.environ["HOPYARD_SOCKET_80"]).name)
    await asyncio.start_unix_server(serve, "other.sock")
    os.symlink("other.sock", os.environ["HOPYARD_SOCKET_LINKED"])
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
RAW_SERVER = """
import os, socket

with socket.create_server(("127.0.0.1", int(os.environ["PORT"]))) as server:
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as received:
            body = received.read()
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
"""
# each process of the tests has another one: servers of different homes know nothing of each other's ports
NAMED_PORT = choose_port(())
SCRIPT_REQUEST = "GET /first HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def serving_shell(served_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return shell_in(tmp_path_factory.mktemp("serving") / "study", served_home)


@pytest.fixture(scope="module")
def run(serving_shell: Shell) -> Iterator[str]:
    """The name of a run that serves."""
    serving_shell.write("serve.py", SERVER)
    name = serving_shell.detach("--port", f"web={NAMED_PORT}", "serve.py", "--", "{port:web}")
    wait_until(
        lambda: (
            b"]" in serving_shell.hop("logs", name).out
            or serving_shell.hop("info", name, "--json").json["ended_at"] is not None
        )
    )
    assert serving_shell.hop("info", name, "--json").json["ended_at"] is None, serving_shell.hop("logs", name)
    yield name
    assert serving_shell.hop("stop", name).code == 0


@pytest.fixture
def token(served_home: Path) -> str:
    return (served_home / "token").read_text().strip()


def _request(
    client: Client,
    path: str,
    *,
    method: str = "GET",
    host: str | None = None,
    headers: Mapping[str, str] = {},
    body: bytes | Iterator[bytes] | None = None,
) -> HTTPResponse:
    connection = HTTPConnection(urlsplit(client.url).netloc, timeout=120)
    connection.request(method, path, body, {**headers, **({"Host": host} if host else {})})
    return connection.getresponse()


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _path(client: Client, run: str) -> str:
    user, project, number = run.split("/")
    run_id = client.get_run_by_name(user, project, number)["id"]
    return client.create_run_port(run_id, {"port": "web"})["path"]


def _at_port(path: str, port: int) -> str:
    """Returns the path of another port. The id of the run may contain the number, too."""
    return f"{path.rpartition('/ports/')[0]}/ports/{port}/"


def test_script_learns_its_real_port(serving_shell: Shell, run: str) -> None:
    words = serving_shell.hop("logs", run).text.split()
    assert words[0] == f"['{words[1]}']"
    assert words[1] == words[2]


def test_requests_reach_the_script_without_the_token(client: Client, run: str, token: str) -> None:
    path = _path(client, run)
    response = _request(client, f"{path}a%2Fb?x=1", headers={**_bearer(token), "X-Own": "1"})
    seen = json.loads(response.read())
    assert (response.status, seen["uri"]) == (200, "/a%2Fb?x=1")
    assert seen["headers"]["Host"] == f"localhost:{NAMED_PORT}"
    assert seen["headers"]["X-Forwarded-Prefix"] == path.rstrip("/")
    assert seen["headers"]["X-Own"] == "1"
    assert "Authorization" not in seen["headers"]
    assert response.headers["Set-Cookie"] == "script=1; Path=/"
    assert response.headers["Content-Security-Policy"] == "sandbox"


def test_bodies_stream_in_both_directions(client: Client, run: str, token: str) -> None:
    path, block = _path(client, run), bytes(range(256)) * 4096
    digest = hashlib.sha256(block * 20).hexdigest()
    for body in (block * 20, iter([block] * 20)):  # with a length, and in chunks
        response = _request(client, f"{path}upload", method="POST", headers=_bearer(token), body=body)
        assert response.read().decode() == digest
    stream = _request(client, f"{path}stream", headers=_bearer(token))
    assert stream.readline() == b"first\n"  # before the script writes the rest
    assert _request(client, f"{path}proceed", headers=_bearer(token)).status == 200
    assert stream.read() == b"second\n"
    assert _request(client, path, method="HEAD", headers=_bearer(token)).status == 405  # of the script


def test_incomplete_response_looks_incomplete(client: Client, run: str, token: str) -> None:
    response = _request(client, f"{_path(client, run)}cut", headers=_bearer(token))
    with pytest.raises(Exception, match="IncompleteRead"):
        response.read()


def test_trailers_and_the_end_of_a_client_reach_the_script(shell: Shell, client: Client, token: str) -> None:
    port = choose_port((NAMED_PORT,))
    shell.write("raw.py", RAW_SERVER)
    name = shell.detach("--port", f"web={port}", "raw.py")
    wait_until(lambda: "ready" in shell.hop("logs", name).text)
    lines = [
        f"POST {_path(client, name)}x HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {token}",
        "Transfer-Encoding: chunked",
        "Trailer: X-Sum",
        "\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nX-Forwarded-For: forged\r\nAuthorization: forged\r\n\r\n",
    ]
    address = urlsplit(client.url)
    with socket.create_connection((address.hostname, address.port), timeout=120) as connection:
        connection.sendall("\r\n".join(lines).encode())
        connection.shutdown(socket.SHUT_WR)  # the script waits for it
        response = HTTPResponse(connection)
        response.begin()
        head, _, body = response.read().decode().partition("\r\n\r\n")
    assert response.status == 200
    assert "trailer: X-Sum" in head.splitlines()
    assert "forged" not in head
    assert body == "2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n"
    assert shell.hop("stop", name).code == 0


def test_web_sockets_pass_unchanged(client: Client, run: str, token: str) -> None:
    url = f"{client.url}{_path(client, run)}echo".replace("http", "ws", 1)

    async def talk() -> None:
        request = HTTPRequest(url, headers=_bearer(token))
        socket = await websocket_connect(request, subprotocols=["a", "b"])
        assert socket.selected_subprotocol == "b"
        blocks = ["text", bytes(range(256)) * 1000, ""]
        for message in blocks:
            await socket.write_message(message, binary=isinstance(message, bytes))
            assert await socket.read_message() == message
        await socket.write_message("close")
        assert await socket.read_message() is None
        assert (socket.close_code, socket.close_reason) == (4001, "as requested")
        with pytest.raises(HTTPClientError, match="HTTP 401"):
            await websocket_connect(HTTPRequest(url))

    asyncio.run(talk())


def test_a_link_opens_the_port_in_one_browser_once(
    serving_shell: Shell, client: Client, run: str, token: str
) -> None:
    link = urlsplit(serving_shell.hop("port", run, "web", "--print").text.strip())
    host = link.netloc
    assert host.startswith(f"p{NAMED_PORT}-")
    opened = _request(client, f"{link.path}?{link.query}", host=host)
    assert (opened.status, opened.headers["Location"]) == (303, "/")
    cookie = opened.headers["Set-Cookie"]
    assert [part.strip().partition("=")[0] for part in cookie.split(";")] == [
        "hopyard_port",
        "HttpOnly",
        "Max-Age",
        "Path",
        "SameSite",
    ]
    assert _request(client, f"{link.path}?{link.query}", host=host).status == 401
    value = {"Cookie": cookie.partition(";")[0]}
    page = json.loads(_request(client, "/api/v1/status", host=host, headers=value).read())
    assert page["uri"] == "/api/v1/status"  # a page of the script, since this host has no API
    assert "Cookie" not in page["headers"]
    refused = {
        "no cookie": _request(client, "/", host=host),
        "token": _request(client, "/", host=host, headers=_bearer(token)),
        "forged": _request(client, "/", host=host, headers={"Cookie": value["Cookie"] + "x"}),
        "other port": _request(client, "/", host=host.replace(str(NAMED_PORT), "1", 1), headers=value),
        "own host": _request(client, _path(client, run), headers=value),
    }
    assert {name: response.status for name, response in refused.items()} == dict.fromkeys(refused, 401)
    for headers in (
        {"Origin": "http://evil.localhost"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ):
        assert _request(client, "/", host=host, headers=value | headers).status == 403
    for headers in (
        {"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ):
        assert _request(client, "/", host=host, headers=value | headers).status == 200


def test_other_users_cannot_open_a_port(serving_shell: Shell, client: Client, run: str) -> None:
    path = _path(client, run)
    bob = serving_shell.hop("user", "add", "bob").text.split()[-1]
    response = _request(client, path, headers=_bearer(bob))
    assert (response.status, json.loads(response.read())["error"]["code"]) == (403, "forbidden")
    for port in (1, 2, 3):  # ports that the run does not have
        assert _request(client, _at_port(path, port), headers=_bearer(bob)).status == 403
    reader = serving_shell.hop("token", "create", "reader", "--scope", "read").text.split()[-1]
    assert _request(client, path, headers=_bearer(reader)).status == 403
    records = serving_shell.hop("audit", "--action", "run.open_port", "--json").json
    outcomes = {(record["user"] == "bob", record["outcome"]) for record in records}
    assert outcomes == {(True, "refused"), (False, "refused"), (False, "done")}
    assert [record["user"] for record in records].count("bob") == 1


def test_connections_end_with_their_token(serving_shell: Shell, client: Client, run: str) -> None:
    path = _path(client, run)
    token = serving_shell.hop("token", "create", "laptop", "--scope", "submit").text.split()[-1]
    address = urlsplit(client.url)
    with socket.create_connection((LOCAL_HOST, address.port or 0), timeout=120) as tunnel:
        head = (
            f"GET {client.url}{path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
        )
        # the request of the script follows at once, behind an address that names the host
        tunnel.sendall(f"{head}Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n{SCRIPT_REQUEST}".encode())
        received = b""
        while b'"uri": "/first"' not in received:
            received += (data := tunnel.recv(65536))
            assert data, received
        assert serving_shell.hop("token", "revoke", "laptop").code == 0
        assert tunnel.recv(65536) == b""


def test_forwarded_port_serves_many_connections(serving_shell: Shell, client: Client, run: str) -> None:
    path = _path(client, run)

    async def forward() -> list[bytes]:
        messages: list[str] = []
        with listen_locally(0, is_required=True) as listener:
            task = asyncio.ensure_future(PortForward(client, path, notify=messages.append).run(listener))
            number = listener.getsockname()[1]

            async def get() -> bytes:
                reader, writer = await asyncio.open_connection(LOCAL_HOST, number)
                writer.write(b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                response = await reader.read()
                writer.close()
                return response

            responses = await asyncio.gather(*(get() for _ in range(20)))
            task.cancel()
        assert messages == []
        return responses

    assert all(response.startswith(b"HTTP/1.1 200") for response in asyncio.run(forward()))


def test_only_listeners_of_the_run_are_reached(shell: Shell, client: Client, run: str, token: str) -> None:
    """A second run names the same port. Nothing of it listens; then a process that is not part of it does."""
    shell.write("wait.py", "import os, time\nprint(os.environ['PORT'], flush=True)\ntime.sleep(1000)\n")
    name = shell.detach("--port", f"web={NAMED_PORT}", "wait.py")
    wait_until(lambda: b"\n" in shell.hop("logs", name).out)
    path = _path(client, name)
    response = _request(client, path, headers=_bearer(token))
    error = json.loads(response.read())["error"]
    assert (response.status, error["message"]) == (502, f"nothing listens on port {NAMED_PORT} yet")
    real = int(shell.hop("logs", name).text)
    assert str(real) not in shell.hop("logs", run).text.split()
    with socket.create_server(("127.0.0.1", real)):
        response = _request(client, path, headers=_bearer(token) | {"Accept": "text/html"})
        assert response.status == 502
        assert b"a process that is not part of the run listens on port" in response.read()
    assert shell.hop("stop", name).code == 0
    wait_until(lambda: shell.hop("info", name, "--json").json["phase"] == "cancelled")
    assert _request(client, path, headers=_bearer(token)).status == 409
    ended = shell.hop("port", name, "web")
    assert (ended.code, "its ports are open while it runs" in ended.stderr_text) == (1, True)

    async def forward() -> None:
        with listen_locally(0, is_required=True) as listener:
            task = asyncio.ensure_future(PortForward(client, path, notify=print).run(listener))
            _, writer = await asyncio.open_connection(LOCAL_HOST, listener.getsockname()[1])
            with pytest.raises(Conflict, match="its ports are open while it runs"):
                await task
            writer.close()

    asyncio.run(forward())


def test_private_socket_serves_a_port(shell: Shell, client: Client, token: str) -> None:
    """Only the server reaches it. A link to another socket leads nowhere."""
    shell.write("private.py", PRIVATE_SERVER)
    name = shell.detach("--port", "web=80", "--port", "linked=81", "private.py")
    wait_until(lambda: b"ready" in shell.hop("logs", name).out)
    path = _path(client, name)
    response = _request(client, path, headers=_bearer(token))
    assert (response.status, response.read()) == (200, b"private")
    linked = _request(client, _at_port(path, 81), headers=_bearer(token))
    assert (linked.status, linked.read().count(b"nothing listens on port 81 yet")) == (502, 1)
    assert shell.hop("stop", name).code == 0


def test_unknown_ports_are_refused(shell: Shell, run: str) -> None:
    unknown = shell.hop("port", run, "9")
    assert (unknown.code, "its ports: web" in unknown.stderr_text) == (2, True)
    assert shell.hop("run", "--detach", "--port", "1", "--", "echo", "{port:2}").code == 2
    assert f"web={NAMED_PORT}" in shell.hop("info", run).text
    assert shell.hop("port", run, "x:web").code == 2
    assert shell.hop("port", run).text.split() == [str(NAMED_PORT), "web"]
    assert shell.hop("port", run, "--json").json == [{"name": "web", "number": NAMED_PORT}]
    assert shell.hop("port", run, "web", "--json").json["number"] == NAMED_PORT
    with socket.create_server((LOCAL_HOST, 0)) as taken:
        busy = shell.hop("port", run, f"{taken.getsockname()[1]}:web")
    assert (busy.code, "this machine cannot be used" in busy.stderr_text) == (2, True)
    shell.write("hop.yaml", "ports: {web: 70000}\nroles: [{command: echo}]\n")
    assert "hop.yaml: ports.web: `70000` is not" in shell.hop("run", "hop.yaml").stderr_text

"""Wrong tokens, addresses and homes: refused access, and how a home finds its server."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hopyard.api_client.client import Client

from .server_home import ServerHome, expect_error, kill, wait_until

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


@contextmanager
def foreign_web_server(port: int = 0) -> Iterator[int]:
    """A web server unrelated to Hopyard, on the given port or on a free one."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b"<html></html>")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def test_wrong_and_missing_tokens_are_refused(shared_home: ServerHome) -> None:
    url = shared_home.client().url
    for token in ("hop_wrong", "nonsense", "hopr_x_1_2"):
        result = shared_home.hop("ps", HOPYARD_URL=url, HOPYARD_TOKEN=token)
        assert (
            result.code == 2
            and result.stderr.startswith("error: ")
            and "token" in result.stderr
            and "hint: " in result.stderr
        ), result
    result = shared_home.hop("ps", HOPYARD_URL=url, HOPYARD_HOME=str(shared_home.root / "another"))
    assert result.code == 2 and "no token" in result.stderr and "HOPYARD_TOKEN" in result.stderr
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{url}/api/v1/status")
    assert error.value.code == 401
    assert json.loads(error.value.read())["error"]["code"] == "not_authorised"


def test_unreachable_and_foreign_urls_are_reported(shared_home: ServerHome) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        result = shared_home.hop(
            "ps", HOPYARD_URL=f"http://127.0.0.1:{closed.getsockname()[1]}", HOPYARD_TOKEN="x"
        )
    assert result.code == 1 and "no server answers" in result.stderr and "hint: " in result.stderr
    with foreign_web_server() as port:
        result = shared_home.hop("ps", HOPYARD_URL=f"http://127.0.0.1:{port}", HOPYARD_TOKEN="x")
    assert (
        result.code in (1, 2) and result.stderr.startswith("error: ") and "Traceback" not in result.stderr
    ), result
    result = shared_home.hop("ps", HOPYARD_URL="not an address", HOPYARD_TOKEN="x")
    assert result.code == 2 and "not an address" in result.stderr and "hint: " in result.stderr


def test_run_token_is_limited_to_its_run(shared_home: ServerHome) -> None:
    shared_home.write("sleep.py", SLEEPS)
    names = [shared_home.run_detached("sleep.py") for _ in range(2)]
    mine, other = (shared_home.wait_for_phase(name, "running") for name in names)
    try:
        shared_home.replica_status(mine)
        spec = json.loads((shared_home.replica(mine) / "spec.json").read_bytes())["launch"]
        client = Client(shared_home.client().url, spec["token"])
        assert client.get(f"/runs/{mine['id']}")["id"] == mine["id"]
        attempt = other["attempt"]["id"]
        status = (
            json.dumps({"status": {"rank": 0, "phase": "running"}, "segments": [], "final": False}).encode()
            + b"\n"
        )

        def sync() -> None:
            with client.open("POST", f"/attempts/{attempt}/replicas/0/sync", body=status) as response:
                response.read()

        for ask in (
            sync,
            lambda: client.post(f"/runs/{other['id']}/stop", {"grace_s": 0}),
            lambda: client.delete(f"/runs/{other['id']}"),
            lambda: client.post(f"/attempts/{attempt}/artifact", {"manifest": "0" * 64}),
            lambda: client.post("/shutdown", {"runs": "stop"}),
            lambda: client.delete("/datasets/x"),
        ):
            error = expect_error(ask)
            assert error.code in ("forbidden", "not_authorised", "not_found"), error.message
        assert shared_home.run(names[1])["phase"] == "running"
    finally:
        shared_home.ok("stop", "--grace", "0", *names)
    for name in names:
        assert shared_home.wait_for_phase(name, "cancelled")["exit"]["kind"] == "stopped"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"pid": 1, "url": 7}',
        '{"url": "http://127.0.0.1:1"}',
        '{"pid": "x", "url": "ftp://x"}',
        "\x00" * 100,
    ],
)
def test_damaged_server_file_is_ignored(server_home: ServerHome, content: str) -> None:
    server_home.home.server_file.write_text(content)
    assert server_home.ok("ps", "--json").json == []
    assert server_home.home.read_server()["pid"] > 0  # type: ignore[index]


def test_server_file_of_foreign_processes_is_ignored(server_home: ServerHome) -> None:
    """The process is alive and the port answers, but neither is a server of this home."""
    with foreign_web_server() as port:
        server_home.home.server_file.write_text(
            json.dumps(
                {"pid": os.getpid(), "url": f"http://127.0.0.1:{port}", "started_at": "", "version": ""}
            )
        )
        assert server_home.ok("ps", "--json").json == []
        server_info = server_home.home.read_server()
        assert server_info is not None and server_info["pid"] != os.getpid()
        assert not server_info["url"].endswith(f":{port}")


def test_port_taken_during_outage_is_replaced(server_home: ServerHome) -> None:
    """The server takes another port, and replicas follow it."""
    gate = server_home.root / "gate"
    server_home.write(
        "wait.py",
        "import os, time\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('end')\n",
    )
    name = server_home.run_detached("wait.py")
    run = server_home.wait_for_phase(name, "running")
    server_home.wait_for_output(run, "begun")
    port = int(server_home.client().url.rpartition(":")[2])
    kill(server_home.server_pid())
    with foreign_web_server(port):
        server_home.ok("up")
        assert not server_home.client().url.endswith(f":{port}")
        gate.touch()
        assert server_home.wait_for_phase(name, "succeeded")["attempt"]["number"] == 1
        assert server_home.log(run) == "begun\nend\n"


def test_requested_port_in_use_is_reported(server_home: ServerHome) -> None:
    with foreign_web_server() as port:
        server_home.home.settings_file.write_text(f"server: {{port: {port}}}\n")
        result = server_home.hop("ps")
        assert result.code == 1 and result.stderr.splitlines()[-1].startswith("hint: ")
        assert (
            f"error: the server could not be started: port {port} cannot be used: Address already in use"
            in result.stderr
        ), result
    assert server_home.hop("ps", "--json").json == []
    assert server_home.client().url.endswith(f":{port}")


def test_invalid_settings_are_reported(server_home: ServerHome) -> None:
    for text, expected in (
        ("node: {cpus: many}\n", "node.cpus"),
        ("node: [\n", "line 2"),
        ("server: {prot: 1}\n", "prot"),
        ("node: {memory: -1}\n", "node.memory"),
    ):
        server_home.home.settings_file.write_text(text)
        result = server_home.hop("ps")
        assert (
            result.code == 1
            and "error: the server could not be started: " in result.stderr
            and expected in result.stderr
            and "hint: " in result.stderr
        ), result
        assert "Traceback" not in result.stderr


def test_unusable_home_is_reported(server_home: ServerHome) -> None:
    closed = server_home.root / "closed"
    closed.mkdir(mode=0o500)
    (server_home.root / "file").touch()
    for home, code, expected in (
        (closed / "home", 1, "cannot be used"),
        (server_home.root / "file", 2, "is a file"),
        (server_home.root / "file" / "home", 2, "cannot be a folder"),
    ):
        result = server_home.hop("ps", plain=True, HOPYARD_HOME=str(home))
        assert (
            result.code == code and expected in result.stderr.splitlines()[0] and str(home) in result.stderr
        ), result
        assert "HOPYARD_HOME" in result.stderr.splitlines()[1]
    mine = server_home.root / "mine"
    mine.mkdir(mode=0o500)
    result = server_home.hop("ps", plain=True, HOPYARD_HOME=str(mine))
    assert (
        result.code == 1
        and result.stderr.startswith("error: ")
        and "hint: " in result.stderr
        and "Traceback" not in result.stderr
    ), result
    assert list(mine.iterdir()) == []


def test_missing_or_changed_token_is_handled(server_home: ServerHome) -> None:
    server_home.ok("up")
    token = server_home.home.token_file.read_text()
    server_home.home.token_file.write_text("hop_somebody_elses")
    result = server_home.hop("ps")
    assert result.code == 2 and "token" in result.stderr and "hint: " in result.stderr, result
    server_home.home.token_file.unlink()
    result = server_home.hop("ps")
    assert result.code == 2 and "token" in result.stderr and "hint: " in result.stderr, result
    server_home.home.token_file.write_text(token)
    result = server_home.ok("token", "rotate")
    fresh = server_home.home.token_file.read_text()
    assert fresh != token and fresh.strip() not in str(result)
    server_home.ok("user", "ls")
    server_home.home.token_file.unlink()
    kill(server_home.server_pid())
    assert server_home.ok("ps", "--json").json == [], "the next server makes a new one"
    wait_until(lambda: server_home.home.token_file.stat().st_mode & 0o777 == 0o600)

"""Tokens and output go only to the server of the home, wherever the server is and whatever happened to its
files."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hopyard.api_client.home_socket import ForeignServer, HomeServerNotRunning, dial, listen
from hopyard.api_client.local_server import find_server, start_server
from hopyard.config.home import Home
from hopyard.config.home_identity import Identity, folder_identity, write_identity
from hopyard.errors import ServerUnavailable

from .server_home import ServerHome, kill, wait_until

COUNTS = (
    "import os, sys, time\nprint('begun', flush=True)\n"
    "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint('end')\n"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@contextmanager
def foreign_server(port: int = 0) -> Iterator[tuple[int, list[str]]]:
    """A program that answers every request on a port with success, and the request lines and headers that it
    received."""
    requests: list[str] = []

    class Yes(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.path} {self.headers}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            offsets = dict.fromkeys(
                ("stdout", "stderr", "metrics", "tensorboard", "events", "system", "journal"), 10**9
            )
            data = json.dumps(
                {"status": "ok", "pid": os.getpid(), "proof": "0" * 64, "offsets": offsets, "stop": False}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Yes)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server.server_address[1], requests
    finally:
        server.shutdown()
        server.server_close()


def test_foreign_program_on_last_port_gets_no_token_and_is_reported(server_home: ServerHome) -> None:
    gate = server_home.root / "gate"
    server_home.write("counts.py", COUNTS)
    name = server_home.run_detached("counts.py", "--", str(gate))
    run = server_home.wait_for_phase(name, "running")
    server_home.wait_for_output(run, "begun")
    port = int(server_home.client().url.rpartition(":")[2])
    server_home.ok("down", "--keep-runs")
    with foreign_server(port) as (_, requests):
        gate.touch()
        wait_until(
            lambda: json.loads((server_home.replica(run) / "status.json").read_bytes())["exit"],
            "the end of the script",
        )
        up = server_home.ok("up")
        expected = f"warning: port {port} of the last server of this home is taken by a program of"
        assert expected in up.stderr and "send their tokens to that program" in up.stderr, up
        assert server_home.wait_for_phase(name, "succeeded")["attempt"]["number"] == 1
        assert server_home.log(run) == "begun\nend\n", "what a stranger acknowledged is not stored"
        assert requests == []
        assert f"warning    port {port}" in server_home.ok("status").stdout
        assert f"port {port}" in server_home.home.server_log.read_text()
        findings = server_home.hop("doctor", "--json").json
        assert any(
            finding["check"] == "server" and finding["level"] == "warn" and f"port {port}" in finding["text"]
            for finding in findings
        )


def test_copy_of_running_home_never_reaches_original_server(server_home: ServerHome) -> None:
    server_home.ok("ps")
    copy = ServerHome(server_home.root, home=server_home.root / "copy", settings="")
    shutil.rmtree(copy.home.root, ignore_errors=True)
    subprocess.run(["cp", "-a", server_home.home.root, copy.home.root], check=True)
    try:
        assert copy.hop("status").stdout == f"no server runs for {copy.home.root}\n"
        assert copy.hop("down").stderr == f"no server runs for {copy.home.root}\n"
        assert copy.ok("ps", "--json").json == []
        assert copy.ok("status", "--json").json["home"] == str(copy.home.root)
        assert copy.server_pid() != server_home.server_pid()
        copy.ok("down")
        assert server_home.ok("status", "--json").json["home"] == str(server_home.home.root)
    finally:
        copy.end()


@pytest.mark.parametrize(
    "content", [None, "", "{", '{"pid": 1, "url": 7}', '{"pid": 4194000, "url": "http://127.0.0.1:9"}']
)
def test_removed_or_damaged_server_file_is_rewritten(shared_home: ServerHome, content: str | None) -> None:
    before = shared_home.ok("status", "--json").json["pid"]
    if content is None:
        shared_home.home.server_file.unlink()
    else:
        shared_home.home.server_file.write_text(content)
    assert shared_home.ok("status", "--json").json["pid"] == before, "the socket is there"
    wait_until(lambda: (shared_home.home.read_server() or {}).get("pid") == before, "server.json as it was")


def test_removed_socket_is_recreated_while_port_serves(
    shared_home: ServerHome,
) -> None:
    before = shared_home.ok("status", "--json").json["pid"]
    shared_home.home.socket_file.unlink()
    assert shared_home.ok("status", "--json").json["pid"] == before
    wait_until(shared_home.home.socket_file.is_socket, "a new socket")
    assert shared_home.ok("status", "--json").json["pid"] == before


def test_port_is_used_only_after_proof_of_home_identity(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    write_identity(home, Identity("me", "ab" * 32))
    with foreign_server() as (port, requests):
        server_info = {"pid": os.getpid(), "url": f"http://127.0.0.1:{port}", "place": folder_identity(home)}
        home.server_file.write_text(json.dumps(server_info))
        with pytest.raises(HomeServerNotRunning, match=f"another program listens on port {port}"):
            dial(home, 5)
        assert find_server(home) is None
        assert requests and all("/proof?nonce=" in line and "Authorization" not in line for line in requests)
        for other in ({"pid": 0}, {"place": "1:1"}, {"url": f"http://10.0.0.1:{port}"}):
            home.server_file.write_text(json.dumps(server_info | other))
            with pytest.raises(HomeServerNotRunning):
                dial(home, 5)


def test_identity_proof_of_another_port_or_home_is_refused(shared_home: ServerHome, tmp_path: Path) -> None:
    """A foreign program that forwards the request to the port of the true server."""
    true = int(shared_home.client().url.rpartition(":")[2])
    wait_until(shared_home.home.socket_file.is_socket)
    with socket.create_server(("127.0.0.1", 0)) as between:

        def relay() -> None:
            with between.accept()[0] as client, socket.create_connection(("127.0.0.1", true)) as server:
                server.sendall(client.recv(65536))
                answer = b""
                while not answer.endswith(b"}"):
                    answer += server.recv(65536)
                client.sendall(answer)

        threading.Thread(target=relay, daemon=True).start()
        home = Home(tmp_path / "seen").create()
        shutil.copy(shared_home.home.identity_file, home.identity_file)
        home.server_file.write_text(
            json.dumps(
                {
                    "pid": os.getpid(),
                    "url": f"http://127.0.0.1:{between.getsockname()[1]}",
                    "place": folder_identity(home),
                }
            )
        )
        with pytest.raises(HomeServerNotRunning, match="another program"):
            dial(home, 5)
    home.server_file.write_text(
        json.dumps({"pid": os.getpid(), "url": f"http://127.0.0.1:{true}", "place": folder_identity(home)})
    )
    with pytest.raises(HomeServerNotRunning, match="another program"):
        dial(home, 5)


def test_home_with_long_path_has_socket(tmp_path: Path) -> None:
    home = Home(tmp_path / ("long" * 30) / "home").create()
    listening = listen(home)
    assert listening is not None
    with listening, dial(home, 5) as sock:
        assert sock.family is socket.AF_UNIX


@needs_root
def test_socket_served_by_another_user_gets_no_token(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    code = (
        "import os, socket, sys\nos.setuid(54321)\ns = socket.socket(socket.AF_UNIX)\n"
        "s.bind(sys.argv[1])\ns.listen()\nprint(flush=True)\nsys.stdin.read()\n"
    )
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 54321, -1)
    for above in (tmp_path, *tmp_path.parents[:3]):
        above.chmod(above.stat().st_mode | 0o011)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(other / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as serving:
        assert serving.stdin is not None and serving.stdout is not None
        serving.stdout.readline()
        (other / "s").rename(home.socket_file)
        with pytest.raises(
            ForeignServer, match=r"is served by 54321 \(uid 54321\), not by the owner of the home"
        ):
            dial(home, 5)
        serving.stdin.close()


def test_owner_is_independent_of_environment_variables(server_home: ServerHome) -> None:
    owner = server_home.ok("user", "ls", "--json").json[0]["name"]
    server_home.ok("down")
    names = {"LOGNAME": "mallory", "USER": "mallory"}
    assert [
        user["name"] for user in server_home.hop("user", "ls", "--json", **names).json if user["owner"]
    ] == [owner]
    server_home.ok("user", "add", "mallory")
    server_home.ok("down")
    server_home.home.token_file.unlink()
    assert [
        user["name"] for user in server_home.hop("user", "ls", "--json", **names).json if user["owner"]
    ] == [owner]
    assert server_home.hop("down", **names).code == 0


def test_unresponsive_server_is_named(server_home: ServerHome) -> None:
    """The server is frozen and its files are gone: the lock names the process."""
    server_home.ok("up")
    pid = server_home.server_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ServerUnavailable, match=rf"the server \(pid {pid}\) has not answered for 1 s"):
            start_server(server_home.home, timeout_s=1)
    finally:
        kill(pid)

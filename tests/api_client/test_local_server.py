"""Finding and starting the embedded server, with real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hopyard import __version__
from hopyard.api_client.local_server import connect, find_server, read_login, start_server, stop_server
from hopyard.config.home import Home
from hopyard.errors import AuthError, ServerUnavailable, SpecError

STUB_SERVER = Path(__file__).with_name("stub_server.py")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    monkeypatch.setenv("HOPYARD_HOME", str(home.root))
    for name in ("HOPYARD_URL", "HOPYARD_TOKEN", "HOPYARD_REPLICA_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield home
    starts = home.root / "starts"
    for pid in map(int, starts.read_text().split() if starts.exists() else ()):
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def command(home: Home) -> tuple[str, ...]:
    return (sys.executable, str(STUB_SERVER), "--home", str(home.root))


def test_server_starts_once_and_is_found_again(home: Home) -> None:
    first = start_server(home, command=command(home))
    assert start_server(home, command=command(home)) == first
    assert find_server(home) == first
    client = connect(start=False)
    assert client.url == first.url and client.token == "hop_test"
    assert client.get("/health")["pid"] == first.pid
    home.server_file.unlink()
    assert find_server(home) == first and connect(start=False).url == first.url, "the socket shows the same"
    client.close()


def test_server_of_earlier_version_is_named_with_the_command_that_updates_it(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    update = "run `hop down --keep-runs` and `hop up` to update it; its runs continue"
    start_server(home, command=command(home))
    client = connect(start=False)
    assert capsys.readouterr().err == ""
    # the version of a development build does not change with each field
    with pytest.raises(SpecError, match="there is no field `count`") as refused:
        client.call("POST", "/runs", json_body={})
    assert refused.value.hints == (f"the server is of an earlier version than this command; {update}",)
    client.close()
    home.server_file.write_text(home.server_file.read_text().replace("0.1.0", "0.0.9"))
    connect(start=False).close()
    assert (
        capsys.readouterr().err == f"note: the server runs hopyard 0.0.9, this is {__version__}; {update}\n"
    )


def test_eight_concurrent_starts_start_one_server(home: Home) -> None:
    code = (
        "import sys\nfrom hopyard.config.home import Home\n"
        "from hopyard.api_client.local_server import start_server\n"
        "print(start_server(Home.default(), command=sys.argv[1:]).pid)"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, *command(home)],
            stdout=subprocess.PIPE,
            env={**os.environ, "SLOW_START": "0.3"},
        )
        for _ in range(8)
    ]
    result = {racer.communicate(timeout=120)[0].strip() for racer in racers}
    assert all(racer.returncode == 0 for racer in racers)
    assert len(result) == 1
    assert len((home.root / "starts").read_text().split()) == 1


def test_failed_start_shows_the_end_of_the_log(home: Home) -> None:
    home.create()
    (home.root / "broken").touch()
    with pytest.raises(ServerUnavailable, match="exit 3") as failed:
        start_server(home, command=command(home))
    assert "the disk is on fire" in failed.value.hints[0]
    assert len((home.root / "starts").read_text().split()) == 1


def test_start_waits_for_a_server_that_is_still_ending(home: Home) -> None:
    """The lock is held but no server answers yet: the start waits until the home is free."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import "
                "fcntl,os,sys;f=open(sys.argv[1],'w');fcntl.flock(f,2);print(1,flush=True);sys.stdin.read()"
            ),
            str(home.create().server_lock),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stdin is not None
    holder.stdout.readline()
    done: list[int] = []
    starter = threading.Thread(target=lambda: done.append(start_server(home, command=command(home)).pid))
    starter.start()
    starts = home.root / "starts"
    while not (starts.exists() and len(starts.read_text().split()) > 1):
        assert starter.is_alive()
    assert not done
    holder.communicate(timeout=30)
    starter.join(60)
    assert len(done) == 1


def test_stale_server_file_is_ignored(home: Home) -> None:
    """Its process has ended, or process and port exist but belong to another program."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    home.create()
    home.server_file.write_text(json.dumps({"pid": ended.pid, "url": "http://127.0.0.1:1"}))
    assert find_server(home) is None

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello" if "health" in self.path else b"")

        def log_message(self, *_: object) -> None:
            return

    other = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        home.server_file.write_text(
            json.dumps({"pid": os.getpid(), "url": f"http://127.0.0.1:{other.server_address[1]}"})
        )
        assert find_server(home) is None
        with pytest.raises(ServerUnavailable, match="no server runs"):
            connect(start=False)
        assert start_server(home, command=command(home)).pid != os.getpid()
    finally:
        other.shutdown()
        thread.join()
        other.server_close()


def test_killed_server_is_replaced(home: Home) -> None:
    first = start_server(home, command=command(home))
    os.kill(first.pid, signal.SIGKILL)
    second = start_server(home, command=command(home))
    assert second.pid != first.pid and find_server(home) == second


def test_stop_server(home: Home) -> None:
    assert not stop_server(home)
    start_server(home, command=command(home))
    assert stop_server(home)
    assert find_server(home) is None and not stop_server(home)


def test_environment_url_has_priority(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPYARD_URL", "http://10.0.0.1:8000")
    with pytest.raises(AuthError, match="no token"):
        connect()
    monkeypatch.setenv("HOPYARD_TOKEN", "hop_x")
    client = connect()
    assert (client.url, client.token) == ("http://10.0.0.1:8000", "hop_x")


def test_login_file_has_priority_over_the_embedded_server(home: Home) -> None:
    home.create()
    home.login_file.write_text('{"url": "http://10.0.0.2:80/", "token": "t"}')
    client = connect()
    assert (client.url, client.token) == ("http://10.0.0.2:80", "t")
    home.login_file.write_text('{"url"')
    with pytest.raises(SpecError, match="damaged"):
        read_login(home)
    home.login_file.unlink()
    assert read_login(home) is None


def test_silent_port_is_not_a_server(home: Home) -> None:
    home.create()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        home.server_file.write_text(
            json.dumps({"pid": 2**22 - 3, "url": f"http://127.0.0.1:{mute.getsockname()[1]}"})
        )
        with pytest.raises(ServerUnavailable):
            connect(start=False)


def test_unresponsive_server_is_reported_with_its_pid(home: Home) -> None:
    with home.create().server_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        with pytest.raises(ServerUnavailable, match=rf"\(pid {os.getpid()}\) .* does not answer"):
            connect(start=False)

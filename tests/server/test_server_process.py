"""The server as a process: one per home, its token, its port, shutdown and kill."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopyard.api_client.client import Client
from hopyard.config.home import Home
from hopyard.errors import AuthError, Conflict, HopyardError

DEADLINE_S = 60.0


def wait_until(met: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (result := met()):
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)
    return result


def start(home: Home, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HOPYARD_HOME": str(home.root)}
    log = home.create().root / "out.log"
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "hopyard.app", "--home", str(home.root), *arguments],
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
        )


def client_of(home: Home, process: subprocess.Popen[bytes]) -> Client:
    def answers() -> Client | None:
        assert process.poll() is None, (home.root / "out.log").read_text()
        text = home.read_server()
        if text is None or text["pid"] != process.pid:
            return None
        return Client(text["url"], home.read_token() or "")

    result: Client = wait_until(answers)
    return result


@contextmanager
def server(home: Home, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    process = start(home, *arguments)
    try:
        yield process, client_of(home, process)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def submit(client: Client, script: str, **spec: Any) -> Any:
    role = {"command": [sys.executable, "-u", "-c", script], "resources": {"cpu_milli": 100}}
    return client.post("/runs", {"spec": {"project": "p", "roles": [role], **spec}}, plan=1)


def wait_final(client: Client, run: Any) -> Any:
    def ended() -> Any:
        result = client.get(f"/runs/{run['id']}")
        return result if result["phase"] in ("succeeded", "failed", "cancelled") else None

    return wait_until(ended)


def log_of(client: Client, run: Any) -> bytes:
    with client.open("GET", f"/runs/{run['id']}/log") as response:
        return response.read()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_server_keeps_its_token_private_and_its_port(home: Home) -> None:
    with server(home) as (process, client):
        text = home.read_server()
        assert text is not None
        assert text["pid"] == process.pid
        assert text["url"].startswith("http://127.0.0.1:")
        assert client.get("/health")["pid"] == process.pid
        assert stat.S_IMODE(home.token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
        assert client.get("/status")["home"] == str(home.root)
        with pytest.raises(AuthError):
            Client(text["url"], "hop_wrong").get("/status")
        token = home.read_token()
    assert process.returncode == 0
    with server(home) as (_, client):
        again = home.read_server()
        assert again is not None
        assert again["url"] == text["url"]
        assert home.read_token() == token
        assert client.get("/status")["runs"] == {}


def test_deleted_token_file_revokes_the_owner_token_at_the_next_start(home: Home) -> None:
    with server(home):
        mark = home.mark_file.read_text()
    old = home.read_token() or ""
    home.token_file.unlink()
    with server(home) as (_, client):
        assert client.token != old and client.get("/users")["users"][0]["tokens"] == 1
        with pytest.raises(AuthError):
            Client(client.url, old).get("/users")
        fresh = client.post(f"/tokens/{client.get('/tokens')['tokens'][0]['id']}/rotate")["secret"]
    lost = home.read_token() or ""  # as if a new token could not be stored
    with server(home) as (_, client):
        assert client.token not in (old, lost, fresh)
        for revoked in (lost, fresh):
            with pytest.raises(AuthError):
                Client(client.url, revoked).get("/users")
    assert home.mark_file.read_text() == mark


def test_second_server_of_a_home_exits_at_once(home: Home) -> None:
    with server(home):
        second = subprocess.run(
            [sys.executable, "-m", "hopyard.app", "--home", str(home.root)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert second.returncode == 0
        assert "already runs" in second.stderr


def test_invalid_settings_are_reported(home: Home) -> None:
    home.create()
    home.settings_file.write_text("node: {cpus: many}\n")
    process = start(home)
    assert process.wait(DEADLINE_S) == 1
    assert "node.cpus" in (home.root / "out.log").read_text()


def test_run_is_followed_to_its_end(home: Home) -> None:
    with server(home) as (_, client):
        run = submit(client, "print('hello')")
        with client.open("GET", f"/runs/{run['id']}/follow") as response:
            kinds, text = [], b""
            while True:
                head = json.loads(response.readline())
                kinds.append(head["kind"])
                if head["kind"] == "output":
                    text += response.read_exactly(head["size"])
                if head["kind"] == "end":
                    break
        assert text == b"hello\n"
        assert head["run"]["phase"] == "succeeded"
        assert kinds[0] == "state"


def test_first_output_reaches_a_follower_before_the_run_ends(home: Home, tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    script = (
        f"import os, time\nprint('first')\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "print('second')"
    )
    with server(home) as (_, client):
        run = submit(client, script)
        with client.open("GET", f"/runs/{run['id']}/follow") as response:
            text = b""
            while True:
                head = json.loads(response.readline())
                if head["kind"] == "output":
                    text += response.read_exactly(head["size"])
                    go_on.touch()  # the script ends only after its output reached the follower
                if head["kind"] == "end":
                    break
        assert text == b"first\nsecond\n"


def test_shutdown_with_live_runs_needs_keep_or_stop(home: Home, tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    script = (
        f"import os, time\nprint('begun')\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "print('done')"
    )
    with server(home) as (process, client):
        run = submit(client, script)
        wait_until(lambda: log_of(client, run))
        with pytest.raises(Conflict):
            client.post("/shutdown", {})
        client.post("/shutdown", {"runs": "keep"})
        assert process.wait(DEADLINE_S) == 0
    go_on.touch()
    with server(home) as (process, client):
        assert wait_final(client, run)["phase"] == "succeeded"
        assert log_of(client, run) == b"begun\ndone\n"
        endless = submit(client, "import time\nprint('x')\nwhile True: time.sleep(1)")
        wait_until(lambda: log_of(client, endless))
        client.post("/shutdown", {"runs": "stop"})
        assert process.wait(DEADLINE_S) == 0
    with server(home) as (_, client):
        ended = client.get(f"/runs/{endless['id']}")
        assert (ended["phase"], ended["stopped_by"]) == ("cancelled", client.get("/status")["user"])


def test_followers_do_not_delay_shutdown(home: Home) -> None:
    with server(home) as (process, client):
        run = submit(client, "import time\nprint('x')\ntime.sleep(600)")
        with client.open("GET", f"/runs/{run['id']}/follow") as response:
            response.readline()
            Client(client.url, client.token).post("/shutdown", {"runs": "stop"})
            while response.readline():
                pass
        assert process.wait(DEADLINE_S) == 0


def test_runs_survive_a_killed_server_and_are_adopted_by_the_next(home: Home, tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    script = f"""
import os, time
for i in range(200):
    print("line", i)
    if i == 100:
        print("half")
        while not os.path.exists({str(go_on)!r}): time.sleep(0.01)
"""
    with server(home) as (process, client):
        runs = [submit(client, script) for _ in range(3)]
        for run in runs:
            wait_until(lambda run=run: b"half" in log_of(client, run))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    go_on.touch()  # they end while no server is there
    (home.scratch / "git-1").mkdir(parents=True)  # of a request that the kill has interrupted
    with server(home) as (_, client):
        assert not home.scratch.exists()
        expected = b"".join(b"line %d\n" % i + (b"half\n" if i == 100 else b"") for i in range(200))
        for run in runs:
            final_run = wait_final(client, run)
            assert (final_run["phase"], len(final_run["attempts"])) == ("succeeded", 1)
            assert log_of(client, run) == expected


def test_accepted_runs_survive_a_killed_server(home: Home) -> None:
    with server(home) as (process, client):
        ids = [submit(client, "print(1)")["id"] for _ in range(5)]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with server(home) as (_, client):
        for id_ in ids:
            final_run = wait_final(client, {"id": id_})
            assert (final_run["phase"], len(final_run["attempts"])) == ("succeeded", 1)


def test_busy_requested_port_is_an_error(home: Home, tmp_path: Path) -> None:
    with server(home) as (_, client):
        other = Home(tmp_path / "other")
        process = start(other, "--port", client.url.rpartition(":")[2])
        assert process.wait(DEADLINE_S) == 1
        assert "in use" in (other.root / "out.log").read_text()
        # Without asking, the port of the last time is only preferred.
        other.server_file.write_text(json.dumps({"pid": 1, "url": client.url}))
        with server(other) as (_, theirs):
            assert theirs.url != client.url
            assert theirs.get("/health")["status"] == "ok"


def test_client_raises_the_error_class_of_the_server(home: Home) -> None:
    with server(home) as (_, client):
        with pytest.raises(HopyardError, match="no run"):
            client.get("/runs/resolve", ref="nothing-like-it")

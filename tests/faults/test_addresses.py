"""Tokens, addresses and homes that are wrong: who may not come in, and how a home finds its server again."""

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

from .world import World, kill, refused, until

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


@contextmanager
def somebody_else(port: int = 0) -> Iterator[int]:
    """A web server that has nothing to do with Hopyard, on a port of its own or on this one."""

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


def test_a_wrong_token_and_none(calm: World) -> None:
    url = calm.client().url
    for token in ("hop_wrong", "nonsense", "hopr_x_1_2"):
        done = calm.hop("ps", HOPYARD_URL=url, HOPYARD_TOKEN=token)
        assert (
            done.code == 2
            and done.talk.startswith("error: ")
            and "token" in done.talk
            and "hint: " in done.talk
        ), done
    done = calm.hop("ps", HOPYARD_URL=url, HOPYARD_HOME=str(calm.root / "another"))
    assert done.code == 2 and "no token" in done.talk and "HOPYARD_TOKEN" in done.talk
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(f"{url}/api/v1/status")
    assert answer.value.code == 401
    assert json.loads(answer.value.read())["error"]["code"] == "not_authorised"


def test_an_address_where_nobody_answers_or_somebody_else(calm: World) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        done = calm.hop("ps", HOPYARD_URL=f"http://127.0.0.1:{closed.getsockname()[1]}", HOPYARD_TOKEN="x")
    assert done.code == 1 and "no server answers" in done.talk and "hint: " in done.talk
    with somebody_else() as port:
        done = calm.hop("ps", HOPYARD_URL=f"http://127.0.0.1:{port}", HOPYARD_TOKEN="x")
    assert done.code in (1, 2) and done.talk.startswith("error: ") and "Traceback" not in done.talk, done
    done = calm.hop("ps", HOPYARD_URL="not an address", HOPYARD_TOKEN="x")
    assert done.code == 2 and "not an address" in done.talk and "hint: " in done.talk


def test_a_runs_token_touches_that_run_only(calm: World) -> None:
    calm.write("sleep.py", SLEEPS)
    names = [calm.detach("sleep.py") for _ in range(2)]
    mine, other = (calm.reaches(name, "running") for name in names)
    try:
        calm.state(mine)
        spec = json.loads((calm.replica(mine) / "spec.json").read_bytes())["launch"]
        client = Client(calm.client().url, spec["token"])
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
            error = refused(ask)
            assert error.code in ("forbidden", "not_authorised", "not_found"), error.message
        assert calm.run(names[1])["phase"] == "running"
    finally:
        calm.ok("stop", "--grace", "0", *names)
    for name in names:
        assert calm.reaches(name, "cancelled")["exit"]["kind"] == "stopped"


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
def test_a_server_file_that_is_damaged(world: World, content: str) -> None:
    world.home.server_file.write_text(content)
    assert world.ok("ps", "--json").json == []
    assert world.home.read_server()["pid"] > 0  # type: ignore[index]


def test_a_server_file_that_names_others(world: World) -> None:
    """The process lives and the port answers, but neither is a server of this home."""
    with somebody_else() as port:
        world.home.server_file.write_text(
            json.dumps(
                {"pid": os.getpid(), "url": f"http://127.0.0.1:{port}", "started_at": "", "version": ""}
            )
        )
        assert world.ok("ps", "--json").json == []
        said = world.home.read_server()
        assert said is not None and said["pid"] != os.getpid()
        assert not said["url"].endswith(f":{port}")


def test_a_port_that_somebody_took_while_the_server_was_dead(world: World) -> None:
    """Another port is found, and what runs follows the server there."""
    gate = world.root / "gate"
    world.write(
        "wait.py",
        "import os, time\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('end')\n",
    )
    name = world.detach("wait.py")
    run = world.reaches(name, "running")
    world.says(run, "begun")
    port = int(world.client().url.rpartition(":")[2])
    kill(world.server_pid())
    with somebody_else(port):
        world.ok("up")
        assert not world.client().url.endswith(f":{port}")
        gate.touch()
        assert world.reaches(name, "succeeded")["attempt"]["number"] == 1
        assert world.log(run) == "begun\nend\n"


def test_a_port_that_was_asked_for_and_is_taken(world: World) -> None:
    with somebody_else() as port:
        world.home.settings_file.write_text(f"server: {{port: {port}}}\n")
        done = world.hop("ps")
        assert done.code == 1 and done.talk.splitlines()[-1].startswith("hint: ")
        assert (
            f"error: the server could not be started: port {port} cannot be used: Address already in use"
            in done.talk
        ), done
    assert world.hop("ps", "--json").json == []
    assert world.client().url.endswith(f":{port}")


def test_settings_that_are_broken(world: World) -> None:
    for text, told in (
        ("node: {cpus: many}\n", "node.cpus"),
        ("node: [\n", "line 2"),
        ("server: {prot: 1}\n", "prot"),
        ("node: {memory: -1}\n", "node.memory"),
    ):
        world.home.settings_file.write_text(text)
        done = world.hop("ps")
        assert (
            done.code == 1
            and "error: the server could not be started: " in done.talk
            and told in done.talk
            and "hint: " in done.talk
        ), done
        assert "Traceback" not in done.talk


def test_a_home_that_cannot_be_used(world: World) -> None:
    closed = world.root / "closed"
    closed.mkdir(mode=0o500)
    (world.root / "file").touch()
    for home, code, told in (
        (closed / "home", 1, "cannot be used"),
        (world.root / "file", 2, "is a file"),
        (world.root / "file" / "home", 2, "cannot be a folder"),
    ):
        done = world.hop("ps", plain=True, HOPYARD_HOME=str(home))
        assert done.code == code and told in done.talk.splitlines()[0] and str(home) in done.talk, done
        assert "HOPYARD_HOME" in done.talk.splitlines()[1]
    mine = world.root / "mine"
    mine.mkdir(mode=0o500)
    done = world.hop("ps", plain=True, HOPYARD_HOME=str(mine))
    assert (
        done.code == 1
        and done.talk.startswith("error: ")
        and "hint: " in done.talk
        and "Traceback" not in done.talk
    ), done
    assert list(mine.iterdir()) == []


def test_a_token_that_is_gone_or_was_changed(world: World) -> None:
    world.ok("up")
    token = world.home.token_file.read_text()
    world.home.token_file.write_text("hop_somebody_elses")
    done = world.hop("ps")
    assert done.code == 2 and "token" in done.talk and "hint: " in done.talk, done
    world.home.token_file.unlink()
    done = world.hop("ps")
    assert done.code == 2 and "token" in done.talk and "hint: " in done.talk, done
    world.home.token_file.write_text(token)
    done = world.ok("token", "rotate")
    fresh = world.home.token_file.read_text()
    assert fresh != token and fresh.strip() not in str(done)
    world.ok("user", "ls")
    world.home.token_file.unlink()
    kill(world.server_pid())
    assert world.ok("ps", "--json").json == [], "the next server makes a new one"
    until(lambda: world.home.token_file.stat().st_mode & 0o777 == 0o600)

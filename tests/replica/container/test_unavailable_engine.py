"""A container engine that is away for a while: no run fails by it, and nothing is left in the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopyard.container_engine.container_labels import remove_container
from hopyard.container_engine.engine_api import EngineApi
from hopyard.replica.container import container_process
from hopyard.replica.container.container_process import ContainerProcess
from tests.cli.shell import Shell, wait_until
from tests.podman import IMAGE, Podman

_KEPT = "kept.sock"  # where the engine answers meanwhile
SMALL = ("--cpus", "0.5", "--image", IMAGE)


@contextmanager
def _engine_away(podman: Podman) -> Iterator[Path]:
    """Refuses all connections at the socket of the engine, as after its death. Yields the path."""
    path = podman.api.path
    kept = path.rename(path.with_name(_KEPT))
    path.write_bytes(b"")
    try:
        yield path
    finally:
        kept.rename(path)


def _of_run(api: EngineApi, run: str) -> list[str]:
    """Returns the names of the containers and networks of a run."""
    names = [str(values["Names"][0]) for values in api.get("/containers/json", all=True)]
    names += [str(values["Name"]) for values in api.get("/networks")]
    return [name for name in names if run in name]


def _info(shell: Shell, name: str) -> dict[str, Any]:
    values: dict[str, Any] = shell.hop("info", name, "--json").json
    return values


def test_containers_are_removed_when_their_engine_is_back(shell: Shell, podman: Podman) -> None:
    name = shell.detach(*SMALL, "--replicas", "2", "--", "sh", "-c", "echo started; sleep 3600")
    wait_until(lambda: shell.hop("logs", name).out.count(b"started") == 2)
    run = _info(shell, name)["id"]
    with _engine_away(podman) as path:
        assert shell.hop("stop", name, "--grace", "0").code == 0
        wait_until(lambda: _info(shell, name)["phase"] == "cancelled")
        assert len(_of_run(EngineApi(path.with_name(_KEPT)), run)) == 3
    # no other run and no start of a server helps
    wait_until(lambda: _of_run(podman.api, run) == [])


def test_run_that_starts_while_its_engine_is_away_is_retried(shell: Shell, podman: Podman) -> None:
    with _engine_away(podman):
        name = shell.detach(*SMALL, "--", "sh", "-c", "echo done")
        wait_until(lambda: b"cannot be reached" in shell.hop("info", name).out)
        assert _info(shell, name)["phase"] not in ("failed", "cancelled")
    wait_until(lambda: _info(shell, name)["phase"] == "succeeded")
    wait_until(lambda: podman.containers() == [])


def test_exit_code_is_awaited_while_the_engine_is_away(
    podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_process, "_STATE_TIMEOUT_S", 0.0)  # even of an engine that answers
    body = {"Image": IMAGE, "Cmd": ["sh", "-c", "exit 7"]}
    container = str(podman.api.post("/containers/create", body)["Id"])
    podman.api.post(f"/containers/{container}/start")
    podman.api.post(f"/containers/{container}/wait")
    own, theirs = socket.socketpair()
    states: list[dict[str, Any]] = []
    with own, theirs:
        process = ContainerProcess(podman.api, container, theirs)
        waiter = threading.Thread(target=lambda: states.append(process._final_state()))
        with _engine_away(podman) as path:
            path.unlink()
            with socket.socket(socket.AF_UNIX) as dying:
                dying.bind(str(path))
                dying.listen()
                waiter.start()
                for _ in range(3):  # tries
                    dying.accept()[0].close()
        waiter.join(60)
    assert [state.get("ExitCode") for state in states] == [7]
    podman.api.delete(f"/containers/{container}")


# as `python container_process.py`, without the long wait for an engine that may be slow
PROGRAM = """
from hopyard.replica.container import container_process
container_process._STATE_TIMEOUT_S = 0.5
container_process.main()
"""


def test_exit_code_of_container_without_monitor_is_unknown(podman: Podman) -> None:
    container = str(podman.api.post("/containers/create", {"Image": IMAGE, "Cmd": ["sleep", "1000"]})["Id"])
    own, theirs = socket.socketpair()
    try:
        with own, theirs, own.makefile("rb") as messages:
            words = [sys.executable, "-c", PROGRAM, str(podman.api.path), container]
            process = subprocess.Popen(words, stdin=theirs.fileno())
            pid = json.loads(messages.readline())["pid"]
            state = podman.api.get(f"/v4.0.0/libpod/containers/{container}/json")["State"]
            os.kill(state["ConmonPid"], signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            assert json.loads(messages.readline())["end"]["code"] is None
            assert process.wait(60) == 125
    finally:
        wait_until(lambda: remove_container(podman.api, container))

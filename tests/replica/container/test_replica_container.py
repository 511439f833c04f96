"""Replicas in containers of a real Podman: what they see, how they end, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopyard.domain.ids import AttemptId
from hopyard.engines.local.port_connections import PortConnector
from tests.cli.shell import Shell, wait_until
from tests.podman import IMAGE, Podman

SMALL = ("--cpus", "0.5", "--image", IMAGE)

SEEN = """
import json, os, pathlib, sys
import hopyard as hop
work = pathlib.Path.cwd()
data = pathlib.Path(hop.dataset_path("tiny"))
try:
    (data / "new").write_text("x")
    writable = True
except OSError:
    writable = False
pathlib.Path(os.environ["HOPYARD_WORKSPACE"], "kept.txt").write_text("from the container")
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
for epoch in hop.loop(range(2)):
    hop.log(loss=epoch, step=epoch)
print(json.dumps({
    "data": (data / "a.txt").read_text(), "data_writable": writable,
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": int(status["NoNewPrivs"]), "uid": os.getuid(),
    "pids": len([name for name in os.listdir("/proc") if name.isdecimal()]),
    "sockets": [path for path in ("/var/run/docker.sock", "/run/podman/podman.sock") if os.path.exists(path)],
    "home": sorted(os.listdir(os.environ["TEST_HOME"])), "gpus": os.environ["NVIDIA_VISIBLE_DEVICES"],
}))
print("to stderr", file=sys.stderr)
sys.exit(3)
"""


def _home(shell: Shell) -> Path:
    return Path(shell.environment["HOPYARD_HOME"])


def test_container_has_the_run_and_nothing_else(shell: Shell, podman: Podman) -> None:
    shell.write("tiny/a.txt", "content")
    assert shell.hop("dataset", "push", "tiny", "tiny").code == 0
    shell.write("seen.py", SEEN)
    home = str(_home(shell))
    given = ("-d", "tiny", "--env", f"TEST_HOME={home}", "--env", "NVIDIA_VISIBLE_DEVICES=all")
    result = shell.hop("run", *SMALL, *given, "seen.py")
    assert (result.code, "to stderr" in result.stderr_text) == (3, True), result.stderr_text
    assert json.loads(result.text) == {
        "data": "content",
        "data_writable": False,
        "capabilities": 0,
        "no_new_privileges": 1,
        "uid": os.getuid(),
        "pids": 2,  # the first process of the container, and this one
        "sockets": [],
        "home": ["address", "attempts", "cache", "run-folders", "server.json", "server.sock"],
        "gpus": "void",
    }
    run = shell.hop("info", "last", "--json").json
    assert run["exit"]["code"] == 3 and run["latest"]["loss"][0] == 1
    assert podman.containers() == []


def test_out_of_memory_is_reported(shell: Shell, podman: Podman) -> None:
    script = "x = bytearray(200 << 20); print(len(x))"
    result = shell.hop("run", *SMALL, "--memory", "48M", "--", "python", "-c", script)
    assert result.code == 137
    assert shell.hop("info", "last", "--json").json["exit"]["kind"] == "out-of-memory"
    assert podman.containers() == []


def test_replicas_of_example_find_each_other_by_name(shell: Shell, podman: Podman) -> None:
    example = Path(__file__).parents[3] / "examples" / "containers"
    in_example = Shell(example, shell.environment)
    result = in_example.hop("run", "--image", IMAGE, "hop.yaml")
    assert (result.code, "received 42 from worker-0" in result.text) == (0, True), result.stderr_text
    wait_until(lambda: (podman.containers(), podman.networks()) == ([], []))


NETWORKS = """
import json, os, socket, sys, time
from pathlib import Path

shared, rank = Path(os.environ["HOPYARD_WORKSPACE"]), os.environ.get("RANK", "0")

def reaches(host, port, timeout=30):
    try:
        socket.create_connection((host, int(port)), timeout=timeout).close()
    except OSError:
        return False
    return True

def wait_for(names):
    while not all((shared / name).exists() for name in names):
        time.sleep(0.05)

server = socket.create_server(("0.0.0.0", 7000))
(shared / f"up-{rank}").touch()
wait_for([f"up-{each}" for each in range(int(os.environ.get("WORLD_SIZE", "1")))])
if rank == "0":
    found = {"peer": reaches("worker-1", 7000), "interfaces": [name for _, name in socket.if_nameindex()]}
    if "WORLD_SIZE" in os.environ:
        address = socket.gethostbyname(socket.gethostname())
        found["address"] = address
    else:
        address = "10.88.0.2"
    for node in sys.argv[2:3]:
        gateway = address.rpartition(".")[0] + ".1"
        found["node"] = reaches(gateway, node)
    for other in sys.argv[3:]:
        found["other"] = reaches(other, 7000, timeout=2)
    print(json.dumps(found), flush=True)
    (shared / "done").touch()
wait_for(["done", *sys.argv[1].split()])
"""


def _json_of(text: str) -> dict[str, Any]:
    """Returns what the run has printed, without the mark of the rank."""
    values: dict[str, Any] = json.loads(text[text.index("{") :])
    return values


def test_replicas_without_network_reach_each_other_only(shell: Shell, podman: Podman) -> None:
    """Not the node, and no container of another run."""
    shell.write("networks.py", NETWORKS)
    pair = (*SMALL, "--replicas", "2")
    other = shell.detach(*pair, "networks.py", "end")
    wait_until(lambda: "address" in shell.hop("logs", other, "--stdout").text)
    address = _json_of(shell.hop("logs", other, "--stdout").text)["address"]
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = str(server.getsockname()[1])
        alone, closed, usual = (
            shell.hop("run", *options, "networks.py", "", port, address)
            for options in ((*SMALL, "--network", "none"), (*pair, "--network", "none"), pair)
        )
    assert [alone.code, closed.code, usual.code] == [0, 0, 0], closed.stderr_text
    seen = [_json_of(result.text) for result in (alone, closed, usual)]
    assert seen[0]["interfaces"] == ["lo"]
    assert [each["peer"] for each in seen] == [False, True, True]
    assert [each["node"] for each in seen] == [False, False, True]
    assert not seen[0]["other"] and not seen[1]["other"]
    assert shell.hop("stop", other, "--grace", "0").code == 0
    wait_until(lambda: (podman.containers(), podman.networks()) == ([], []))


LIVE = """
import http.server, os, signal, sys, threading, time
def stop(*_):
    print("stopping", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
address = "", int(os.environ["HOPYARD_PORT_8888"])
server = http.server.ThreadingHTTPServer(address, http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("started", flush=True)
while True:
    time.sleep(1)
"""


def _check_forged_ports(home: Path, monkeypatch: pytest.MonkeyPatch, podman: Podman) -> None:
    """The script may write into the folder of its replica, but the server connects to no other port of the
    node."""
    for name, value in podman.variables.items():
        monkeypatch.setenv(name, value)
    connector = PortConnector(home / "attempts", home)
    file = next(home.glob("attempts/*/0/spec.json"))
    attempt, text = AttemptId(file.parent.parent.name), file.read_text()

    async def connect() -> None:
        (await connector.connect(attempt, 0, 8888))[1].transport.abort()

    asyncio.run(connect())
    with socket.create_server(("127.0.0.1", 0)) as other:
        spec = json.loads(text)
        spec["node"]["ports"]["8888"] = other.getsockname()[1]
        for image in (spec["launch"]["image"], ""):
            spec["launch"]["image"] = image
            file.write_text(json.dumps(spec))
            state = file.with_name("status.json")
            earlier = state.read_text()
            state.write_text(json.dumps({**json.loads(earlier), "pid": os.getppid(), "container_pid": 1}))
            asyncio.run(connect())
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.accept()
            state.write_text(earlier)
    file.write_text(text)


def test_container_outlives_its_server_and_gets_signals(
    shell: Shell, podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.write("live.py", LIVE)
    name = shell.detach(*SMALL, "--memory", "200M", "--port", "8888", "live.py")
    wait_until(lambda: b"started" in shell.hop("logs", name).out)
    result = shell.hop("exec", name, "--", "python", "-c", "import os; print(os.environ['HOPYARD_RUN'])")
    assert (result.code, result.text.strip()) == (0, name), result.stderr_text
    assert shell.hop("exec", name, "--", "no-such-program").code == 127
    server = json.loads((_home(shell) / "server.json").read_text())["pid"]
    os.kill(server, signal.SIGKILL)
    assert shell.hop("ps").code == 0  # starts the next server
    wait_until(lambda: shell.hop("info", name, "--json").json["phase"] == "running")
    ports = json.loads(next(_home(shell).glob("attempts/*/0/spec.json")).read_text())["node"]["ports"]
    with socket.create_connection(("127.0.0.1", ports["8888"]), timeout=60) as connection:
        connection.sendall(b"GET /live.py HTTP/1.0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.0 200"
    _check_forged_ports(_home(shell), monkeypatch, podman)
    assert shell.hop("stop", name).code == 0
    wait_until(lambda: shell.hop("info", name, "--json").json["phase"] == "cancelled")
    assert shell.hop("logs", name).out.splitlines()[-1] == b"stopping"
    assert podman.containers() == []


def test_killed_replica_leaves_no_container(shell: Shell, podman: Podman) -> None:
    words = (*SMALL, "--", "sh", "-c", "echo started; sleep 3600")
    other = shell.detach(*words)
    wait_until(lambda: b"started" in shell.hop("logs", other).out)
    (other_container,) = podman.containers()
    name = shell.detach(*words)
    wait_until(lambda: b"started" in shell.hop("logs", name).out)
    assert len(podman.containers()) == 2
    attempts = [shell.hop("info", run, "--json").json["attempt"]["id"] for run in (name, other)]
    # the script may write to the folder of its replica: the container of another run is not removed
    folder = _home(shell) / "attempts" / attempts[0] / "0"
    spec = json.loads((folder / "spec.json").read_text())
    spec["launch"]["attempt"] = attempts[1]
    (folder / "spec.json").write_text(json.dumps(spec))
    os.kill(int(json.loads((folder / "status.json").read_text())["pid"]), signal.SIGKILL)
    wait_until(lambda: shell.hop("info", name, "--json").json["attempt"]["number"] > 1)
    wait_until(lambda: shell.hop("logs", name).out.count(b"started") >= 1)
    assert other_container in podman.containers()
    assert shell.hop("info", other, "--json").json["attempt"]["id"] == attempts[1]
    for run in (name, other):
        shell.hop("stop", run, "--grace", "0")
        wait_until(lambda run=run: shell.hop("info", run, "--json").json["phase"] == "cancelled")
    wait_until(lambda: podman.containers() == [])


def test_run_is_stopped_while_the_container_engine_hangs(shell: Shell, podman: Podman) -> None:
    name = shell.detach(*SMALL, "--", "sh", "-c", "echo started; sleep 3600")
    wait_until(lambda: b"started" in shell.hop("logs", name).out)
    os.kill(podman.service, signal.SIGSTOP)
    try:
        assert shell.hop("stop", name, "--grace", "0").code == 0
        wait_until(lambda: shell.hop("info", name, "--json").json["phase"] == "cancelled")
    finally:
        os.kill(podman.service, signal.SIGCONT)
    wait_until(lambda: podman.containers() == [])


def _services(socket_path: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "service" in (words := process.info["cmdline"] or ()) and f"unix://{socket_path}" in words
    ]


def test_service_that_was_started_for_containers_is_started_again(podman: Podman, tmp_path: Path) -> None:
    if any(Path(path).exists() for path in ("/var/run/docker.sock", "/run/podman/podman.sock")):
        pytest.skip("another engine answers first")
    socket_path = tmp_path / f"hopyard-podman-{os.geteuid()}" / "podman.sock"
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    words = shlex.join([shutil.which(podman.command[0]) or "", *podman.command[1:]])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    (tmp_path / "code").mkdir()
    environment = {**os.environ, **podman.variables, "HOPYARD_HOME": str(tmp_path / "home")}
    environment |= {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    del environment["DOCKER_HOST"]
    shell = Shell(tmp_path / "code", environment)
    try:
        name = shell.detach(
            *SMALL, "--", "sh", "-c", "echo started; while ! [ -e go ]; do sleep 0.1; done; exit 7"
        )
        wait_until(lambda: b"started" in shell.hop("logs", name).out)
        (service,) = _services(socket_path)
        service.kill()
        wait_until(lambda: shell.hop("exec", name, "--", "sh", "-c", ":").code == 0)
        shell.hop("exec", name, "--", "sh", "-c", ": >go")  # it may be ended with the run
        wait_until(lambda: shell.hop("info", name, "--json").json["phase"] == "failed")
        assert shell.hop("info", name, "--json").json["exit"]["code"] == 7
        wait_until(lambda: podman.containers() == [])
    finally:
        shell.hop("down", "--stop-runs")
        for service in _services(socket_path):
            service.kill()


def test_missing_image_and_options_of_the_node_are_errors(shell: Shell) -> None:
    result = shell.hop("run", "--image", "absent.invalid/nothing:1", "--", "python", "-c", "1")
    assert result.code == 125
    assert (
        "absent.invalid/nothing:1 cannot be pulled"
        in shell.hop("info", "last", "--json").json["exit"]["reason"]
    )
    shell.write("requirements.txt", "six\n")
    wrong = shell.hop("run", *SMALL, "--requirements", "requirements.txt", "--", "python", "-c", "1")
    assert (wrong.code, "hint: add --container to build an image" in wrong.stderr_text) == (2, True)
    packages = shell.hop("run", *SMALL, "--container", "--", "python", "-c", "1")
    assert (packages.code, "--container: no requirements are given" in packages.stderr_text) == (2, True)
    path = shell.hop("run", "--image", "../../etc", "--", "python", "-c", "1")
    assert (path.code, "is not the name of an image" in path.stderr_text) == (2, True)

"""`hop sync`, against the real server."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect, find_server, stop_server
from hopyard.config.home import Home
from hopyard.errors import IntegrityError, NotFound
from hopyard.sdk import sync_offline as shipping
from hopyard.sdk.sync_offline import StillRunning, clear_leftovers, offline_folders, sync_folder
from tests.sdk.scripts import CLEAN, finish, start

SCRIPT = """
import hopyard as hop
p = hop.params(lr=0.1, epochs=4)
kept = hop.bind(n=[0])
for epoch in hop.loop(range(p.epochs)):
    kept.n[0] += 1
    hop.log(loss=1 / (epoch + 1), step=epoch)
hop.summary(acc=0.75)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Client]]:
    """A real embedded server in a home of its own."""
    home = Home(tmp_path_factory.mktemp("sync") / "home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOPYARD_URL", "HOPYARD_TOKEN", "HOPYARD_REPLICA_DIR"):
            patch.delenv(name, raising=False)
        patch.setenv("HOPYARD_HOME", str(home.root))
        client = connect(home=home)
    yield home, client
    client.close()
    stop_server(home, runs="stop")


@pytest.fixture
def recorded_run(server: tuple[Home, Client], tmp_path: Path) -> Path:
    """The folder of a run that a plain script recorded."""
    return record_run(server[0], tmp_path)


def record_run(home: Home, tmp_path: Path, code: str = SCRIPT, *, ok: bool = True) -> Path:
    before = set(offline_folders(home.offline))
    folder = tmp_path / "digits"
    folder.mkdir(exist_ok=True)
    finish(start(code, folder, {**CLEAN, "HOPYARD_HOME": str(home.root)}), ok=ok)
    (new_folders,) = set(offline_folders(home.offline)) - before
    return new_folders


def hop(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hopyard.cli", *words]
    return subprocess.run(
        command,
        env={**CLEAN, "HOPYARD_HOME": str(home.root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def loss_series(client: Client, run: str) -> dict[str, Any]:
    return dict(client.get(f"/runs/{run}/metrics")["series"]["loss"])


def test_recorded_run_is_synced_completely(server: tuple[Home, Client], recorded_run: Path) -> None:
    home, client = server
    done = hop(home, "sync", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    run = client.get(f"/runs/{row['id']}")
    assert row["state"] == "sent" and row["run"] == run["name"] and row["id"] == recorded_run.name
    assert (
        run["phase"] == "succeeded"
        and run["offline"]
        and run["summary"] == {"acc": 0.75}
        and run["params"] == {"lr": 0.1, "epochs": 4}
    )
    assert run["name"].split("/")[1] == "digits" and run["spec"]["roles"][0]["command"][-1].endswith(
        "main.py"
    )
    assert loss_series(client, row["id"])["steps"] == [0, 1, 2, 3] and loss_series(client, row["id"])[
        "values"
    ] == [
        1.0,
        0.5,
        1 / 3,
        0.25,
    ]
    assert run["ended_at"] >= run["started_at"]
    steps = [c["step"] for c in client.get(f"/runs/{row['id']}/checkpoints")["checkpoints"]]
    assert steps and set(steps) <= {2, 3, 4} and 4 in steps
    assert not recorded_run.exists()
    second_sync = hop(home, "sync")
    assert second_sync.returncode == 0 and "nothing to sync" in second_sync.stderr


# `hop sync` that is killed after the given number of requests for its run
KILLED = """
import os, runpy, signal, sys
from hopyard.sdk import sync_offline
from hopyard.api_client.client import Client
sync_offline.MAX_SYNC_BYTES, left, send = 64, [REQUESTS], Client.open
def count(self, *args, **more):
    left[0] -= args[1].startswith(("/runs/offline", "/attempts/", "/blobs"))
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return send(self, *args, **more)
Client.open = count
sys.argv = ["hop", "sync"]
runpy.run_module("hopyard.cli", run_name="__main__", alter_sys=True)
"""


def test_synced_run_stays_running_until_complete_despite_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setenv("HOPYARD_HOME", str(home.root))
    first, second = record_run(home, tmp_path), record_run(home, tmp_path)
    phases = []
    for requests in random.Random(29).sample(range(1, 7), 3):
        killed_sync(home, tmp_path, requests)
        phases.append(json.loads(hop(home, "info", first.name, "--json").stdout)["phase"])
        kill_server(home)
    assert phases == ["running"] * 3
    listed = json.loads(hop(home, "ps", "--json").stdout)
    assert [run["id"] for run in listed] == [first.name], "the second one has not begun"
    assert "being synced, last part came" in hop(home, "ps").stdout + hop(home, "info", first.name).stdout
    assert (
        "recorded offline and is being synced; the last upload was at" in hop(home, "why", first.name).stdout
    )
    refused = hop(home, "stop", first.name)
    assert (
        refused.returncode,
        "the server runs no process of it" in refused.stderr,
        "`hop sync`" in refused.stderr,
    ) == (1, True, True), refused
    assert hop(home, "down").returncode == 0, "nothing of it runs"
    assert hop(home, "sync").returncode == 0
    result = json.loads(hop(home, "info", first.name, "--json").stdout)
    assert (result["phase"], result["summary"], result["latest"]["loss"]) == (
        "succeeded",
        {"acc": 0.75},
        [3, 0.25],
    )

    third = record_run(home, tmp_path)
    killed_sync(home, tmp_path, 3)
    assert hop(home, "rm", "-y", third.name).returncode == 0
    assert [run["id"] for run in json.loads(hop(home, "ps", "-a", "--json").stdout)] == [
        second.name,
        first.name,
    ]
    stop_server(home, runs="stop")


def killed_sync(home: Home, folder: Path, requests: int) -> None:
    process = start(
        KILLED.replace("REQUESTS", str(requests)), folder, {**CLEAN, "HOPYARD_HOME": str(home.root)}
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def kill_server(home: Home) -> None:
    address = find_server(home)
    assert address is not None
    os.kill(address.pid, signal.SIGKILL)


def test_interrupted_sync_resumes(
    server: tuple[Home, Client], recorded_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills at each request in turn: synced data is not lost, and nothing is duplicated."""
    _, client = server
    monkeypatch.setattr(shipping, "MAX_SYNC_BYTES", 64)

    class Cut(Client):
        left = 0

        def open(self, *args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                raise ConnectionError("cut")
            self.left -= 1
            return super().open(*args, **kwargs)

    cut = Cut(client.url, client.token)
    for allowed in range(200):
        cut.left = allowed
        try:
            sync_folder(recorded_run, cut)
            break
        except ConnectionError:
            assert recorded_run.exists()
    assert not recorded_run.exists() and allowed >= 10
    cut.close()
    assert loss_series(client, recorded_run.name)["steps"] == [0, 1, 2, 3]
    run = client.get(f"/runs/{recorded_run.name}")
    assert run["phase"] == "succeeded" and run["summary"] == {"acc": 0.75}


LOUD = """
import hopyard as hop
for step in range(100_000):
    hop.log(loss=1 / (step + 1), step=step)
"""


def test_long_recording_is_limited_and_interrupted_sync_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.settings_file.write_text("runs: {max_output: 1M, max_metrics: 1M}\n")
    monkeypatch.setenv("HOPYARD_HOME", str(home.root))
    monkeypatch.setattr(shipping, "MAX_SYNC_BYTES", 300_000)
    made, send, left = record_run(home, tmp_path, LOUD), Client.open, [0]
    (made / "streams" / "stdout").write_bytes(b"".join(b"line %d\n" % n for n in range(300_000)))

    def breaks(client: Client, *args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise ConnectionError("broken off")
        return send(client, *args, **more)

    monkeypatch.setattr(Client, "open", breaks)
    try:
        client = connect(home=home)
        for request in (4, 6):
            left[0] = request
            with pytest.raises(ConnectionError):
                sync_folder(made, client)
        run = sync_folder(made, client).run
        found, series = client.get(f"/runs/{run['id']}"), loss_series(client, run["id"])
        with client.open("GET", f"/runs/{run['id']}/log") as response:
            log = response.read()
        client.close()
    finally:
        stop_server(home, runs="stop")
    assert sorted(text.partition(" of replica 0")[0].split()[-1] for text in found["unstored"]) == [
        "metrics",
        "stdout",
    ]
    assert series["steps"][-1] == 99_999 and 2**20 // 33 - 2 <= series["count"] <= 2**20 // 33 + 2, (
        "the beginning and the last value"
    )
    assert log.startswith(b"line 0\n") and log.endswith(b"line 299999\n") and len(log) < 2**20 * 5 // 4 + 1000


def test_retained_folders_count_as_synced(server: tuple[Home, Client], recorded_run: Path) -> None:
    home, client = server
    assert hop(home, "sync", "--keep", str(recorded_run)).returncode == 0
    assert recorded_run.exists() and recorded_run not in offline_folders(home.offline)
    once = client.get(f"/runs/{recorded_run.name}")
    # on request by name it is sent again, without effect
    assert hop(home, "sync", recorded_run.name).returncode == 0
    assert client.get(f"/runs/{recorded_run.name}") == once and not recorded_run.exists()


def test_killed_and_failed_scripts_are_synced_as_such(server: tuple[Home, Client], tmp_path: Path) -> None:
    home, client = server
    killed = record_run(
        home, tmp_path, SCRIPT + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", ok=False
    )
    failed = record_run(home, tmp_path, SCRIPT + "raise ValueError('x')\n", ok=False)
    exited = record_run(home, tmp_path, SCRIPT + "import sys\nsys.exit(4)\n", ok=False)
    for folder in (killed, failed, exited):
        sync_folder(folder, client)
    lost, four = client.get(f"/runs/{killed.name}"), client.get(f"/runs/{exited.name}")
    assert lost["phase"] == "failed" and "without a record" in lost["exit"]["reason"]
    assert four["phase"] == "failed" and four["exit"]["code"] == 4
    assert client.get(f"/runs/{failed.name}")["exit"]["code"] == 1


def test_running_script_is_not_synced(server: tuple[Home, Client], tmp_path: Path) -> None:
    home, client = server
    folder = tmp_path / "digits"
    folder.mkdir()
    env = {**CLEAN, "HOPYARD_HOME": str(home.root)}
    code = (
        "import hopyard as hop\nhop.log(loss=1.0)\nprint(hop.run().folder, flush=True)\n"
        "import sys; sys.stdin.read()\n"
    )
    (folder / "main.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, "main.py"],
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        recording = Path(process.stdout.readline().strip())
        try:
            with pytest.raises(StillRunning):
                sync_folder(recording, client)
            everything = hop(home, "sync")
            assert everything.returncode == 0 and "still runs" in everything.stderr
            named = hop(home, "sync", str(recording))
            assert named.returncode == 1 and "still being recorded" in named.stderr
        finally:
            process.stdin.close()
            process.wait(60)
    assert hop(home, "sync").returncode == 0 and not recording.exists()


def test_broken_folder_does_not_block_other_folders(
    server: tuple[Home, Client], recorded_run: Path, tmp_path: Path
) -> None:
    home, client = server
    broken = home.offline / "0broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    odd = home.offline / "1odd"
    odd.mkdir()
    record = {"id": "1odd", "started_at": "2026-01-01T00:00:00Z", "argv": [], "datasets": [{}]}
    (odd / "run.json").write_text(json.dumps(record))
    recorded = json.loads((recorded_run / "run.json").read_bytes())
    recorded["argv"].append("a\udcff")  # as Python has an argument of the byte 0xff
    (recorded_run / "run.json").write_text(json.dumps(recorded))
    try:
        done = hop(home, "sync", "--json")
        assert done.returncode == 1
        rows = {Path(row["folder"]).name: row for row in json.loads(done.stdout)}
        assert (
            rows["0broken"]["state"] == "failed"
            and "damaged" in rows["0broken"]["error"]
            and rows[recorded_run.name]["state"] == "sent"
        )
        assert "1odd is damaged: KeyError: 'name'" in rows["1odd"]["error"]
        run = client.get(f"/runs/{recorded_run.name}")
        assert run["spec"]["roles"][0]["command"][-1] == "a\\xff"
        with pytest.raises(IntegrityError):
            sync_folder(broken, client)
    finally:
        shutil.rmtree(broken)
        shutil.rmtree(odd)
    with pytest.raises(NotFound, match="holds no run"):
        sync_folder(tmp_path, client)


def test_plain_script_reads_dataset_of_server(server: tuple[Home, Client], tmp_path: Path) -> None:
    home, client = server
    data = tmp_path / "numbers"
    data.mkdir()
    (data / "x.txt").write_text("1 2 3\n")
    assert hop(home, "dataset", "push", "numbers", str(data)).returncode == 0
    code = (
        "import hopyard as hop\nprint((hop.dataset_path('numbers') / 'x.txt').read_text())\n"
        "hop.summary(mean=2.0)\n"
    )
    folder = record_run(home, tmp_path, code)
    run = sync_folder(folder, client).run
    assert [(d["name"], d["version"]) for d in run["spec"]["datasets"]] == [("numbers", 1)]
    assert [row["run"] for row in client.get("/datasets/numbers/board")["rows"]]


def test_concurrent_commands_start_one_server(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    code = "from hopyard.api_client.local_server import connect\nprint(connect().get('/health')['pid'])"
    env = {**CLEAN, "HOPYARD_HOME": str(home.root)}
    racers = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    try:
        outputs = {racer.communicate(timeout=180)[0].strip() for racer in racers}
        server = find_server(home)
        assert server is not None and outputs == {str(server.pid)}
        assert connect(start=False, home=home).get("/health")["pid"] == server.pid
    finally:
        assert stop_server(home)
    assert find_server(home) is None


def test_run_recorded_with_clock_ahead_is_dated_now(server: tuple[Home, Client], recorded_run: Path) -> None:
    facts = json.loads((recorded_run / "run.json").read_bytes())
    facts["started_at"] = (datetime.now(UTC) + timedelta(days=400)).isoformat()
    (recorded_run / "run.json").write_text(json.dumps(facts))
    run = sync_folder(recorded_run, server[1]).run
    assert run["phase"] == "succeeded"
    assert datetime.fromisoformat(run["submitted_at"]) <= datetime.now(UTC)


def test_empty_recordings_are_removed_and_unsendable_are_reported(tmp_path: Path) -> None:
    for name, output in {"empty": b"", "lost": b"points", ".sent-whole": b"points", "begins": b""}.items():
        streams = tmp_path / name / "streams"
        streams.mkdir(parents=True)
        (streams / "metrics").write_bytes(output)
        if name != "begins":
            os.utime(tmp_path / name, (1, 1))
    assert clear_leftovers(tmp_path) == [tmp_path / "lost"]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["begins", "lost"]

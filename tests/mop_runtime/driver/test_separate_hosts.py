"""Workers on separate hosts: states move directly, or through the driver if the hosts cannot reach each
other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.mop_runtime.transport.handshake import connect
from tests.mop_runtime.driver.cluster import Cluster

CODE = """
import numpy as np

class Sums:
    def init(self, config):
        return {"w": np.zeros(50_000), "visits": 0}

    def train(self, state, partition, config):
        state["w"] += partition["x"].sum() * config["lr"]
        state["visits"] += 1

    def evaluate(self, state, partition, config):
        return {"score": float(state["w"][0]), "visits": state["visits"]}
"""
TIMEOUTS = {
    "initial_wait_s": 60.0,
    "reconnect_s": 0.5,
    "heartbeat_s": 5.0,
    "no_worker_s": 60.0,
    "checkpoint_interval_s": 0.5,
}
UNUSED_HOST = "127.0.0.2"  # no worker listens on this address
TRIALS: list[tuple[dict[str, Any], int]] = [({"lr": 0.1 * at}, 3) for at in range(3)]


TOGETHER = """
    def train_together(self, state, partitions, config, reduce):
        state["w"] += reduce([np.array([float(partition["x"].sum()) for partition in partitions])])[0].sum()
        state["visits"] += 2
"""


def start_on_hosts(
    folder: Path,
    *addresses: str,
    code: str = CODE,
    trials: list[tuple[dict[str, Any], int]] = TRIALS,
    failed_sends: int = 0,
    damaged: int = 0,
    **settings: Any,
) -> Cluster:
    """Starts one worker per address, at which other workers look for it. The driver is on another host."""
    (folder / "data").mkdir()
    np.savez(folder / "data" / "table.npz", x=np.arange(60.0), y=np.arange(60))
    (folder / "code.py").write_text(code)
    for at in range(len(addresses) + 2):
        (folder / f"memory-{at}" / "disk").mkdir(parents=True)
    own = {
        "memory": str(folder / f"memory-{len(addresses)}"),
        "disk": str(folder / f"memory-{len(addresses)}" / "disk"),
    }
    cluster = Cluster(
        folder,
        trials,
        worker="real_worker",
        trainable="code.py:Sums",
        timeouts=TIMEOUTS,
        workers=len(addresses),
        parts=2,
        **settings,
    )
    cluster.start_driver(**own)
    for at, address in enumerate(addresses):
        cluster.start_worker(
            f"w{at}",
            memory=str(folder / f"memory-{at}"),
            host=address,
            failed_sends=failed_sends,
            damaged=damaged,
        )
    return cluster


def reported_visits(records: list[dict[str, Any]]) -> dict[tuple[str, int], float]:
    assert not [record for record in records if record["kind"] == "fake-end" and record["error"]]
    return {
        (record["trial"], record["step"]): record["metrics"]["visits"]
        for record in records
        if record["kind"] == "fake-report"
    }


ALL = {(str(trial), step): 2 * step for trial in range(3) for step in range(1, 4)}


@pytest.mark.parametrize(
    "addresses", [("", ""), ("", UNUSED_HOST), (UNUSED_HOST, UNUSED_HOST)], ids=["both", "one", "neither"]
)
def test_states_hop_between_hosts_with_partial_reachability(
    tmp_path: Path, addresses: tuple[str, ...]
) -> None:
    with start_on_hosts(tmp_path, *addresses) as cluster:
        records = cluster.finish(60)
        assert reported_visits(records) == ALL
        visits = Counter(
            (r["trial"], r["epoch"], part) for r in records if r["kind"] == "hop" for part in r["partitions"]
        )
        assert visits == {
            (str(trial), epoch, part): 1 for trial in range(3) for epoch in range(3) for part in range(2)
        }
        assert sum(r["fetched_bytes"] for r in records if r["kind"] == "hop") > 0
        assert cluster.records_of_kind("saved"), "the driver has them brought, too"
        cluster.wait_until(
            lambda: all(not list((tmp_path / f"memory-{at}").glob("hopyard-*/state-*")) for at in range(3))
        )


def test_host_that_serves_states_is_lost(tmp_path: Path) -> None:
    """A worker that waits for a state of this host through the driver stops waiting, and another host
    replaces it."""
    with start_on_hosts(tmp_path, UNUSED_HOST, UNUSED_HOST) as cluster:
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 3)
        cluster.workers_by_name["w1"].kill()
        cluster.start_worker("w1", memory=str(tmp_path / "memory-3"), host=UNUSED_HOST)
        assert reported_visits(cluster.finish(60)) == ALL


def test_failed_state_transfer_is_retried(tmp_path: Path) -> None:
    """Without the retry the driver received nothing, and the waiting worker would wait forever."""
    with start_on_hosts(tmp_path, UNUSED_HOST, UNUSED_HOST, trials=TRIALS[:1], failed_sends=1) as cluster:
        assert reported_visits(cluster.finish(60)) == {("0", step): 2 * step for step in (1, 2, 3)}


@pytest.mark.parametrize("address", ["", UNUSED_HOST])
def test_repeatedly_damaged_state_counts_as_lost(tmp_path: Path, address: str) -> None:
    """Without the limit the state would be requested endlessly."""
    with start_on_hosts(tmp_path, address, address, damaged=2) as cluster:
        assert reported_visits(cluster.finish(60)) == ALL
        assert "is damaged on" in "".join(cluster.logs())


def test_trial_with_only_damaged_states_fails(tmp_path: Path) -> None:
    """However often the trial resumes from an older state."""
    with start_on_hosts(tmp_path, UNUSED_HOST, UNUSED_HOST, trials=TRIALS[:1], damaged=10**6) as cluster:
        (over,) = [record for record in cluster.finish(60) if record["kind"] == "fake-end"]
        assert "no worker could fetch the initial state of a unit in epoch 1, 5 times" in over["error"]


def test_trial_that_kills_its_workers_fails_with_its_states_lost(tmp_path: Path) -> None:
    """Each time it went back to an older state, and how often a worker was lost was forgotten; by a restarted
    driver, too."""
    code = CODE.replace("import numpy as np", "import os, signal\nimport numpy as np").replace(
        '        state["visits"] += 1',
        '        state["visits"] += 1\n        if state["visits"] == 3:\n'
        "            os.kill(os.getpid(), signal.SIGKILL)",
    )
    restarts: list[bool] = []
    with start_on_hosts(tmp_path, "", code=code, trials=TRIALS[:1]) as cluster:

        def is_over() -> bool:
            if len(cluster.records_of_kind("retried")) == 2 and not restarts:
                restarts.append(True)
                cluster.kill_driver()
                cluster.start_driver()
            if cluster.workers_by_name["w0"].poll() is not None:
                cluster.start_worker("w0", memory=str(tmp_path / "memory-0"), host="")
            return bool(cluster.records_of_kind("fake-end"))

        cluster.wait_until(is_over, 240)
        assert "was lost 4 times in the same unit" in cluster.records_of_kind("fake-end")[0]["error"]


def test_request_without_state_name_is_refused(tmp_path: Path) -> None:
    with Cluster(tmp_path, [], workers=1) as cluster:
        cluster.settings["trials"] = [{"params": {}, "budget": 1}]
        cluster.start_driver()
        address, secret = (
            f"127.0.0.1:{cluster.settings['port']}",
            bytes.fromhex(cluster.common_settings["secret"]),
        )
        for name in ("../etc/passwd", "", "x" * 200, None):
            wire = connect(address, secret)
            wire.send({"kind": "fetch", "state": name})
            head, _ = wire.receive_head()
            while head == {"kind": "wait"}:
                head, _ = wire.receive_head()
            assert head["kind"] == "refused"
            assert ("is not the name of a state" in head["error"]) is (name is not None)
            wire.close()
        cluster.start_worker("w0")
        cluster.finish()
        output = "".join(cluster.logs())
        assert "Traceback" not in output
        assert output.count("requests a state: ") == 3


@pytest.mark.parametrize("address", ["", UNUSED_HOST])
def test_trials_continue_without_groups_when_workers_cannot_connect(tmp_path: Path, address: str) -> None:
    with start_on_hosts(tmp_path, address, address, code=CODE + TOGETHER, trials=TRIALS[:1]) as cluster:
        records = cluster.finish(60)
        assert reported_visits(records) == {("0", step): 2 * step for step in (1, 2, 3)}
        alone = [record for record in records if record["kind"] == "worker" and record["event"] == "alone"]
        assert len(alone) == bool(address)
        groups = any(len(record["workers"]) > 1 for record in records if record["kind"] == "hop")
        assert groups is not bool(address)

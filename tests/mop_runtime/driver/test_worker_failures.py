"""Workers and driver are killed and frozen: only units in progress are lost, and nothing is done twice."""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.ids import WorkerId
from hopyard.mop_runtime.messages import Hello, to_head
from hopyard.mop_runtime.transport.handshake import connect
from tests.mop_runtime.driver.cluster import SHORT_TIMEOUTS, Cluster

SIX: list[tuple[dict[str, Any], int]] = [({"lr": at / 10}, 3) for at in range(6)]


def test_killed_worker_is_replaced_by_other_workers(tmp_path: Path) -> None:
    with Cluster(tmp_path, SIX, unit_s=0.02) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 8)
        cluster.workers_by_name["w1"].kill()
        cluster.finish()
        assert cluster.count_repeated_visits() == 0
        assert ("w1", "lost") in {
            (note["worker"], note["event"]) for note in cluster.records_of_kind("worker")
        }


def test_new_process_replaces_killed_worker(tmp_path: Path) -> None:
    """Under the same name, before the loss is detected."""
    with Cluster(
        tmp_path, SIX, unit_s=0.1, timeouts={**SHORT_TIMEOUTS, "reconnect_s": 60.0, "heartbeat_s": 60.0}
    ) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 8)
        cluster.workers_by_name["w1"].kill()
        cluster.start_worker("w1")
        cluster.finish()
        assert cluster.count_repeated_visits() == 0
        events = [note["event"] for note in cluster.records_of_kind("worker") if note["worker"] == "w1"]
        assert events == ["joined", "lost", "joined"]


def test_frozen_worker_counts_as_lost_and_rejoins(tmp_path: Path) -> None:
    with Cluster(tmp_path, [(params, 8) for params, _ in SIX], unit_s=0.03) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 8)
        cluster.signal("w2", signal.SIGSTOP)
        cluster.wait_until(lambda: any(note["event"] == "lost" for note in cluster.records_of_kind("worker")))
        cluster.wait_until(lambda: cluster.records_of_kind("hop")[-1]["partitions"] == [2])
        cluster.signal("w2", signal.SIGCONT)
        cluster.finish()
        events = [note["event"] for note in cluster.records_of_kind("worker") if note["worker"] == "w2"]
        assert events == ["joined", "lost", "joined"]


def test_study_survives_loss_of_all_workers_when_new_worker_joins(tmp_path: Path) -> None:
    with Cluster(tmp_path, SIX, unit_s=0.02) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 8)
        for process in cluster.workers_by_name.values():
            process.kill()
        cluster.start_worker("w9")
        cluster.finish()
        assert cluster.count_repeated_visits() == 0, "states are on the shelf that the driver has, too"


def test_workers_survive_driver_kill(tmp_path: Path) -> None:
    """Work of the workers during the outage is not repeated."""
    with Cluster(tmp_path, SIX, unit_s=0.05) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 10)
        cluster.kill_driver()
        cluster.start_driver()
        cluster.finish()
        assert cluster.count_repeated_visits() == 0
        assert len(cluster.records_of_kind("evaluated")) == 54


def test_evaluations_that_end_while_the_driver_is_away_are_not_repeated(tmp_path: Path) -> None:
    """Their results arrive before the new driver has begun with the trial."""
    gate = tmp_path / "go"
    with Cluster(tmp_path, [({"lr": 0.1}, 1)]) as cluster:
        cluster.start_driver()
        for name in ("w0", "w1", "w2"):
            cluster.start_worker(name, evaluation_gate=str(gate))
        cluster.wait_until(lambda: len(list(tmp_path.glob("go-*"))) == 3)
        cluster.kill_driver()
        gate.touch()
        cluster.wait_until(lambda: len(list(tmp_path.glob("gone-*"))) == 3)
        cluster.start_driver()
        cluster.finish()
        assert len(cluster.records_of_kind("evaluated")) == 3
        assert len(cluster.records_of_kind("measured")) == 1


def test_driver_is_killed_while_workers_open_their_data(tmp_path: Path) -> None:
    """They reconnect in another order, and the answers to the killed driver arrive at the new one. It waits
    for none of its own workers, so each wrong belief about open partitions becomes a unit at once."""
    gate = tmp_path / "go"
    with Cluster(tmp_path, SIX, workers=2, timeouts={**SHORT_TIMEOUTS, "initial_wait_s": 0.0}) as cluster:
        cluster.start_driver()
        for name in ("w0", "w1"):
            cluster.start_worker(name, open_gate=str(gate), open_s=1.0)
            cluster.wait_until(lambda name=name: ("joined", name) in joins(cluster))
        cluster.kill_driver()
        cluster.signal("w0", signal.SIGSTOP)
        cluster.start_driver()
        cluster.wait_until(lambda: len(joins(cluster)) == 3)
        cluster.signal("w0", signal.SIGCONT)
        cluster.wait_until(lambda: len(joins(cluster)) == 4)
        gate.touch()
        cluster.finish()
        assert [name for _, name in joins(cluster)][:4] == ["w0", "w1", "w1", "w0"]
        assert cluster.count_repeated_visits() == 0


def joins(cluster: Cluster) -> list[tuple[str, str]]:
    return [
        (note["event"], note["worker"])
        for note in cluster.records_of_kind("worker")
        if note["event"] == "joined"
    ]


def test_study_survives_kill_of_driver_and_all_workers(tmp_path: Path) -> None:
    """Without any worker left, trials resume from the saved states."""
    timeouts = {
        "initial_wait_s": 1.0,
        "reconnect_s": 0.3,
        "heartbeat_s": 2.0,
        "no_worker_s": 20.0,
        "checkpoint_interval_s": 0.1,
    }
    with Cluster(tmp_path, SIX, unit_s=0.02, timeouts=timeouts) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(cluster.records_of_kind("saved")) > 2)
        cluster.kill_driver()
        for process in cluster.workers_by_name.values():
            process.kill()
            process.wait()
        cluster.start(restore=True)
        cluster.finish()
        firsts = [hop for hop in cluster.records_of_kind("hop") if not hop["start_from"]]
        assert len(firsts) < 2 * len(SIX), "some went on"


def test_new_attempt_waits_for_all_its_workers(tmp_path: Path) -> None:
    """It does not start with the workers of the previous attempt, as another driver of the same attempt
    does."""
    with Cluster(tmp_path, SIX, unit_s=0.05, timeouts={**SHORT_TIMEOUTS, "initial_wait_s": 60.0}) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 4)
        cluster.workers_by_name["w1"].kill()
        cluster.wait_until(lambda: any(note["event"] == "lost" for note in cluster.records_of_kind("worker")))
        cluster.kill_driver()
        cluster.start_driver()
        hops = len(cluster.records_of_kind("hop"))
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > hops + 2)
        assert "2 of 3 workers are connected" in "".join(cluster.logs())
        cluster.kill_driver()
        for process in cluster.workers_by_name.values():
            process.kill()
            process.wait()
        for log in tmp_path.glob("*.log"):
            log.unlink()
        notes = len(cluster.records_of_kind("worker"))
        cluster.start_driver(attempt=2)
        cluster.start_worker("w0")
        cluster.start_worker("w2")
        cluster.wait_until(lambda: len(cluster.records_of_kind("worker")) >= notes + 2)
        cluster.start_worker("w1")
        cluster.finish()
        assert "workers are there" not in "".join(cluster.logs())


def test_straggler_is_reported_and_relieved(tmp_path: Path) -> None:
    with Cluster(tmp_path, [(params, 4) for params, _ in SIX], unit_s=0.02) as cluster:
        cluster.start_driver()
        cluster.start_worker("w0")
        cluster.start_worker("w1")
        cluster.start_worker("w2", unit_s=0.3)
        cluster.finish()
        assert [
            note["worker"] for note in cluster.records_of_kind("worker") if note["event"] == "straggler"
        ] == ["w2"]
        others = [
            hop
            for hop in cluster.records_of_kind("hop")
            if hop["partitions"] == [2] and hop["workers"] != ["w2"]
        ]
        assert others, "its partition was opened by another"


def test_study_fails_when_no_worker_can_open_data(tmp_path: Path) -> None:
    with Cluster(tmp_path, SIX) as cluster:
        cluster.start_driver()
        for worker in ("w0", "w1", "w2"):
            cluster.start_worker(worker, cannot_open=True)
        assert cluster.driver is not None
        cluster.wait_until(lambda: cluster.driver is not None and cluster.driver.poll() is not None)
        assert "no worker can start: the data is not there" in "".join(cluster.logs())
        assert not [note for note in cluster.records_of_kind("worker") if note["event"] == "cannot open"], (
            "it is told once, as the study's error"
        )


def test_worker_that_cannot_open_data_is_excluded(tmp_path: Path) -> None:
    with Cluster(tmp_path, SIX, timeouts={**SHORT_TIMEOUTS, "initial_wait_s": 60.0}) as cluster:
        cluster.start_driver()
        cluster.start_worker("w1")
        cluster.wait_until(lambda: cluster.records_of_kind("worker"))
        cluster.start_worker("w0", cannot_open=True)
        cluster.wait_until(
            lambda: any(note["event"] == "cannot open" for note in cluster.records_of_kind("worker"))
        )
        cluster.start_worker("w2")
        cluster.start_worker("w3")
        cluster.finish()
        events = [note["event"] for note in cluster.records_of_kind("worker") if note["worker"] == "w0"]
        assert events == ["joined", "cannot open", "lost"]


@pytest.mark.parametrize("seed", range(2))
def test_study_survives_random_faults(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Cluster(tmp_path, [(params, 4) for params, _ in SIX], unit_s=0.02) as cluster:
        cluster.start()
        for blow in range(6):
            target = len(cluster.records_of_kind("hop")) + chance.randrange(1, 12)
            cluster.wait_until(
                lambda least=target: (
                    len(cluster.records_of_kind("hop")) >= least or cluster.records_of_kind("fake-done")
                )
            )
            if cluster.records_of_kind("fake-done"):
                break
            alive = [name for name, process in cluster.workers_by_name.items() if process.poll() is None]
            match chance.choice(["kill", "freeze", "driver", "driver", "join"]):
                case "kill":
                    cluster.workers_by_name[chance.choice(alive)].kill()
                case "freeze":
                    cluster.signal(chance.choice(alive), chance.choice([signal.SIGSTOP, signal.SIGCONT]))
                case "driver":
                    cluster.kill_driver()
                    cluster.start_driver()
            cluster.start_worker(f"x{blow}")
        cluster.finish()


def test_study_fails_when_workers_repeatedly_hang_at_start(tmp_path: Path) -> None:
    """The parent kills and restarts each of them, so one worker always exists."""
    timeouts = {
        "initial_wait_s": 1.0,
        "reconnect_s": 0.1,
        "heartbeat_s": 1.0,
        "open_s": 0.5,
        "no_worker_s": 2.0,
    }
    with Cluster(tmp_path, [({}, 1)], workers=1, parts=1, timeouts=timeouts) as cluster:
        cluster.start_driver()
        assert cluster.driver is not None
        pid, deadline = 1, time.monotonic() + 30
        while cluster.driver.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                wire = connect(
                    f"127.0.0.1:{cluster.settings['port']}", bytes.fromhex(cluster.common_settings["secret"])
                )
                wire.send(to_head(Hello(WorkerId("w0"), pid, "here", "its own", "127.0.0.1:1")))
                pid += 1
                while True:
                    wire.receive()
        assert cluster.driver.wait(0) == 1
        assert "no worker for 2 s: workers hang or exit" in "".join(cluster.logs())

"""Trials hop between workers that are processes of their own."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.mop_runtime.driver.cluster import Cluster

EIGHT: list[tuple[dict[str, Any], int]] = [({"lr": at / 10}, 2) for at in range(8)]


def test_every_trial_is_trained_and_evaluated_once_on_each_partition(tmp_path: Path) -> None:
    with Cluster(tmp_path, EIGHT, hybrid=False) as cluster:
        cluster.start().finish()
        assert cluster.count_repeated_visits() == 0
        hops = cluster.records_of_kind("hop")
        assert [hop["n"] for hop in hops] == list(range(1, 49))
        assert {tuple(hop["workers"]) for hop in hops} == {("w0",), ("w1",), ("w2",)}
        assert len(cluster.records_of_kind("evaluated")) == 48
        assert {record["state"] for record in cluster.records_of_kind("named")} == {
            hop["state"] for hop in hops
        }


def test_fixed_order_does_not_depend_on_durations(tmp_path: Path) -> None:
    """Two runs with opposite slow workers, and with another number of workers: the same hops of each trial,
    and the same reports in the same order."""
    trials: list[tuple[dict[str, Any], int]] = [({"cost": 1 + at % 3}, 1 + at % 2) for at in range(5)]
    outcomes = []
    for number, speeds in enumerate(((0.001, 0.03), (0.03, 0.001), (0.01,))):
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = {"order": "fixed", "concurrent": 3, "parts": 4, "workers": len(speeds)}
        with Cluster(folder, trials, **settings) as cluster:
            cluster.start_driver()
            for at, unit_s in enumerate(speeds):
                cluster.start_worker(f"w{at}", unit_s=unit_s)
            records = cluster.finish()
        hops = {
            trial: [
                (record["epoch"], record["partitions"])
                for record in records
                if record["kind"] == "hop" and record["trial"] == str(trial)
            ]
            for trial in range(len(trials))
        }
        calls = [
            {name: value for name, value in record.items() if name != "t"}
            for record in records
            if record["kind"] in ("fake-start", "fake-report", "fake-end")
        ]
        outcomes.append((hops, calls))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_reports_within_an_epoch_survive_kills(tmp_path: Path) -> None:
    """Budgets of 3 to 9 steps of 4 partitions, with a report after two. Kills change no hop and no report,
    and each comes once."""
    trials: list[tuple[dict[str, Any], int]] = [({"cost": 1 + at % 2}, 3 * at + 3) for at in range(3)]
    outcomes = []
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
        settings = {"every": 2, "order": "fixed", "concurrent": 3, "parts": 4, "workers": 2}
        with Cluster(tmp_path / name, trials, unit_s=0.02, **settings) as cluster:
            cluster.start()
            if name == "killed":
                cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 4)
                cluster.signal("w0", signal.SIGKILL)
                cluster.start_worker("w0")
                cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 8)
                cluster.kill_driver()
                cluster.start_driver()
            records = cluster.finish()
        calls = [
            {key: value for key, value in record.items() if key != "t"}
            for record in records
            if record["kind"] == "fake-report"
        ]
        outcomes.append(calls)
    assert outcomes[0] == outcomes[1]
    assert [call["step"] for call in outcomes[0] if call["trial"] == "2"] == [2, 4, 6, 8, 9]


def test_searched_parameter_without_effect_ends_study(tmp_path: Path) -> None:
    trials: list[tuple[dict[str, Any], int]] = [({"lr": 0.1, "width": 0.5}, 2)] * 2
    with Cluster(tmp_path, trials, searched=["lr", "width"]) as cluster:
        cluster.start_driver()
        for name in ("w0", "w1", "w2"):
            cluster.start_worker(name, read=["lr"])
        cluster.wait_until(lambda: cluster.driver is not None and cluster.driver.poll() is not None)
        assert "no code has read `width` in the 2 epochs of trial" in "".join(cluster.logs())
        assert not cluster.records_of_kind("fake-end")
    (tmp_path / "both").mkdir()
    with Cluster(tmp_path / "both", trials, searched=["lr", "width"]) as cluster:
        cluster.start_driver()
        for name, read in (("w0", ["lr"]), ("w1", ["width"]), ("w2", [])):
            cluster.start_worker(name, read=read)
        cluster.finish()


def test_unneeded_states_are_dropped(tmp_path: Path) -> None:
    with Cluster(tmp_path, EIGHT) as cluster:
        cluster.start().finish()
        (best,) = cluster.records_of_kind("best")[-1:]
        (saved,) = cluster.records_of_kind("saved")
        assert list(saved["states"]) == [best["state"]]
        assert [path.name for path in (tmp_path / "saved").iterdir()] == [best["state"]]


def test_failed_trial_ends_alone(tmp_path: Path) -> None:
    trials: list[tuple[dict[str, Any], int]] = [({}, 2), ({"fails_in": 1}, 2), ({"fails_once": 1}, 2)]
    with Cluster(tmp_path, trials, retry_errors=3) as cluster:  # each of the three workers fails once
        cluster.start().finish()
        over = {record["trial"]: record["error"] for record in cluster.records_of_kind("fake-end")}
        assert over["0"] == over["2"] == ""
        assert "the user's own mistake" in over["1"]


def test_fewer_trials_than_workers_train_in_groups(tmp_path: Path) -> None:
    with Cluster(tmp_path, [({}, 3)], unit_s=0.05) as cluster:
        cluster.start().finish()
        groups = [hop for hop in cluster.records_of_kind("hop") if len(hop["workers"]) > 1]
        assert groups
        assert all(len(hop["workers"]) == len(hop["partitions"]) for hop in groups)


def test_workers_without_data_parallel_code_join_no_group(tmp_path: Path) -> None:
    with Cluster(tmp_path, [({}, 3)], unit_s=0.05) as cluster:
        cluster.start_driver()
        for at in range(cluster.workers):
            cluster.start_worker(f"w{at}", together=False)
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 2)
        cluster.kill_driver()
        cluster.start_driver()  # they have all partitions open and report no new Ready
        cluster.finish()
        assert all(len(hop["workers"]) == 1 for hop in cluster.records_of_kind("hop"))


def test_fewer_workers_than_requested_share_all_partitions(tmp_path: Path) -> None:
    timeouts = {
        "initial_wait_s": 0.5,
        "absent_worker_s": 1.0,
        "reconnect_s": 0.3,
        "heartbeat_s": 2.0,
        "no_worker_s": 20.0,
        "checkpoint_interval_s": 100.0,
    }
    with Cluster(tmp_path, EIGHT[:3], workers=3, parts=6, timeouts=timeouts) as cluster:
        cluster.start_driver()
        cluster.start_worker("w0")
        cluster.start_worker("w1")
        cluster.finish()


def test_states_are_evaluated_on_training_data_without_validation(tmp_path: Path) -> None:
    with Cluster(tmp_path, EIGHT[:2], validation=0.0) as cluster:
        cluster.start().finish()

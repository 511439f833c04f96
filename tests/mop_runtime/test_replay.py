"""A study of PyTorch trials with real workers is replayed in one process, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.errors import NotFound
from hopyard.mop_runtime.replay import ReplayResult, replay_study, replay_trial
from tests.mop_runtime.driver.cluster import ROOT, Cluster

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CODE = """
import torch
from torch import nn
from torch.nn import functional as F
from hopyard.trainables.torch_trainable import TorchTrainable

Digits = TorchTrainable(
    model=lambda config: nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)
    ),
    optimizer=lambda parameters, config: torch.optim.Adam(parameters, lr=config.lr),
    loss=F.cross_entropy,
    metrics={"score": "accuracy"},
    schedule=lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
    batch_size=16,
)
"""
REPLAY = """
import sys
from pathlib import Path
from hopyard.domain.study import PartitionPlan
from hopyard.studies.journal import read_records
from hopyard.mop_runtime.replay import replay_study
from hopyard.trainables.load import load
from hopyard.mop_runtime.worker import process_setup
from hopyard.mop_runtime.worker.open_partitions import open_dataset_folder

folder = Path(sys.argv[1])
process_setup.apply_determinism(True, 0)
trainable = load("code.py:Digits", folder)
process_setup.apply_determinism(True, 0)
data = open_dataset_folder(folder / "data", folder / "replayed")(PartitionPlan(2, validation=0.25))
records = list(read_records((folder / "journal").read_bytes()))
def opened(partition, kind): return data.open(partition, kind)
found = list(replay_study(records, trainable, opened, partition_count=2, seed=7))
differing = [str(one) for one in found if not one.matches]
assert not differing, differing
hops = sum(isinstance(one.actual, str) for one in found)
print(hops, len(found) - hops)
"""


def study(folder: Path, trials: list[tuple[dict[str, Any], int]], **settings: Any) -> Cluster:
    rng = np.random.default_rng(3)
    y = np.arange(400) % 2
    (folder / "data").mkdir()
    np.savez(folder / "data" / "table.npz", x=(rng.normal(size=(400, 6)) + y[:, None]).astype("f4"), y=y)
    (folder / "code.py").write_text(CODE)
    patience = {
        "initial_wait_s": 60.0,
        "reconnect_s": 0.5,
        "heartbeat_s": 5.0,
        "no_worker_s": 60.0,
        "checkpoint_interval_s": 1000.0,
    }
    return Cluster(
        folder,
        trials,
        worker="real_worker",
        trainable="code.py:Digits",
        validation=0.25,
        patience=patience,
        **settings,
    )


def replay(folder: Path) -> tuple[int, int]:
    """In a process of its own, as workers are."""
    command = [sys.executable, "-c", REPLAY, str(folder)]
    result = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    hops, evaluations = result.stdout.split()
    return int(hops), int(evaluations)


def test_study_is_replayed_bit_for_bit_after_driver_kill(tmp_path: Path) -> None:
    """The last trial is alone in the end, and trains in groups."""
    trials: list[tuple[dict[str, Any], int]] = [({"lr": 0.01}, 2), ({"lr": 0.1}, 1), ({"lr": 0.03}, 6)]
    with study(tmp_path, trials, workers=2, parts=2) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(cluster.records_of_kind("hop")) > 4, 120)
        cluster.kill_driver()
        cluster.start_driver()
        records = cluster.finish(90)
        hops, evaluations = replay(tmp_path)
        assert hops == sum(record["kind"] == "hop" for record in records), (
            "nothing was lost, so all are replayed"
        )
        assert evaluations == sum(budget for _, budget in trials) * 2
        assert any(len(record["partitions"]) > 1 for record in records if record["kind"] == "hop"), (
            "some went in a group"
        )


class Counting:
    """A trainable with a number as its state."""

    def __init__(self, step: int = 1) -> None:
        self.step = step

    def init(self, config: Any) -> dict[str, int]:
        return {"count": 0}

    def train(self, state: dict[str, int], partition: Any, config: Any) -> None:
        state["count"] += self.step * (partition + 1)

    def evaluate(self, state: dict[str, int], partition: Any, config: Any) -> dict[str, float]:
        return {"count": state["count"]}


def recorded_journal() -> list[dict[str, Any]]:
    """Returns a journal of two partitions and one epoch."""
    from hopyard.mop_runtime.worker import unit
    from hopyard.trainables.config import Config
    from hopyard.trial_state.digest import digest

    records: list[dict[str, Any]] = [
        {"kind": "begun", "trial": "0", "state": "", "epoch": 0, "budget": 1, "params": {}}
    ]
    config, trainable = Config({}, "0", 7, 0, 1), Counting()
    state, before = unit.init_state(trainable, config, 7), ""
    for partition in (1, 0):
        unit.train(trainable, state, partition, config)  # type: ignore[arg-type]
        data = bytearray(unit.encode_state(trainable, state).to_bytes())
        name = f"1.{partition}"
        records.append(
            {
                "kind": "hop",
                "trial": "0",
                "epoch": 0,
                "partitions": [partition],
                "start_from": before,
                "state": name,
            }
        )
        records.append({"kind": "named", "state": name, "digest": digest(data)})
        state, before = unit.load_state(trainable, data, config), name
    records.append(
        {
            "kind": "evaluated",
            "state": before,
            "partition": 0,
            "metrics": {"count": 3.0},
            "rows": 1,
            "of": "train",
        }
    )
    return records


def replay_records(records: list[dict[str, Any]], trainable: Any) -> list[ReplayResult]:
    return list(
        replay_trial(records, "0", trainable, lambda partition, kind: partition, partition_count=2, seed=7)
    )  # type: ignore


def test_first_difference_of_replay_is_named() -> None:
    assert [result.matches for result in replay_records(recorded_journal(), Counting())] == [True, True, True]
    first, *_ = replay_records(recorded_journal(), Counting(2))
    assert str(first).startswith("trial 0, epoch 0, partition 1: the digest was ")


def test_differing_metrics_are_named() -> None:
    records = recorded_journal()
    records[-1]["metrics"] = {"count": 4.0}
    *_, last = replay_records(records, Counting())
    assert str(last).endswith("partition 0: the metrics was {'count': 4.0}, and is {'count': 3.0} now")


def test_journal_without_hops_cannot_be_replayed() -> None:
    with pytest.raises(NotFound, match="no hop to replay"):
        replay_records([{"kind": "study", "spec": {}}], Counting())


def test_replay_of_trial_omits_hops_with_lost_states() -> None:
    records = recorded_journal()
    lost_hop = {"kind": "hop", "trial": "0", "epoch": 0, "partitions": [0], "start_from": "", "state": "1.9"}
    records.insert(1, lost_hop)
    assert len(replay_records(records, Counting())) == 3
    results = replay_study(records, Counting(), lambda partition, kind: partition, partition_count=2, seed=7)  # type: ignore
    assert len(list(results)) == 4, "of the whole study, all is done again"

"""Metrics that are no means over rows are computed once, on the outputs of all validation partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopyard.domain.ids import PartitionId
from hopyard.domain.study import PartitionPlan
from hopyard.mop_runtime.replay import replay_study
from hopyard.mop_runtime.worker.open_partitions import open_dataset_folder
from hopyard.studies.journal import read_records
from hopyard.trainables.load import load
from tests.mop_runtime.driver.cluster import Cluster

PARTS = 3
CODE = """
import hopyard as hop
import numpy as np

def init(config):
    return {"visits": 0}

def train(state, partition, config):
    state["visits"] += 1
    for batch in range(2):
        hop.log(train_loss=partition.index + batch, step=config.epoch)
    print("visit", state["visits"])

def outputs(state, partition):
    return partition["x"][:, 0] * state["visits"]

def evaluate(state, partition, config):
    raise AssertionError("`gather` is called in its place")

def gather(state, partition, config):
    scores = outputs(state, partition)
    return {"mae": np.abs(scores - partition["y"]).mean()}, {"scores": scores, "targets": partition["y"]}

def measure(gathered, config):
    scores = np.concatenate([part["scores"] for part in gathered])
    targets = np.concatenate([part["targets"] for part in gathered])
    return {"score": np.sqrt(((scores - targets) ** 2).mean()), "rows": len(targets)}
"""


def test_metric_of_whole_set_equals_one_computation(tmp_path: Path) -> None:
    """Also where partitions differ in size, and in the replay of the study."""
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data" / "t.npz", x=rng.normal(size=(100, 2)), y=rng.normal(size=100) ** 3)
    trials = [({"lr": 0.1}, 2), ({"lr": 0.2}, 1)]
    with Cluster(
        tmp_path, trials, workers=2, parts=PARTS, worker="real_worker", trainable="code.py"
    ) as cluster:
        cluster.start()
        records = cluster.finish(90.0)
    plan = PartitionPlan(PARTS, validation=0.2)
    partitions = open_dataset_folder(tmp_path / "data", tmp_path / "again")(plan)
    opened = [partitions.open(index, "validation") for index in range(PARTS)]
    assert len({len(part) for part in opened}) > 1
    x, y = (np.concatenate([part[column] for part in opened]) for column in ("x", "y"))
    reports = [record for record in records if record["kind"] == "fake-report"]
    assert {(report["trial"], report["step"]) for report in reports} == {("0", 1), ("0", 2), ("1", 1)}
    for report in reports:
        errors = x[:, 0] * PARTS * report["step"] - y
        assert report["metrics"]["score"] == np.sqrt((errors**2).mean())
        assert report["metrics"]["rows"] == len(y)
        assert report["metrics"]["train_loss"] == 1.5, "the mean over the batches of all partitions"
        assert np.isclose(report["metrics"]["mae"], np.abs(errors).mean())
        per_partition = [
            np.sqrt(((part["x"][:, 0] * PARTS * report["step"] - part["y"]) ** 2).mean()) for part in opened
        ]
        assert not np.isclose(
            report["metrics"]["score"], np.average(per_partition, weights=[len(part) for part in opened])
        )
    replayed = list(
        replay_study(
            list(read_records((tmp_path / "journal").read_bytes())),
            load("code.py", tmp_path),
            lambda index, kind: partitions.open(int(PartitionId(index)), kind),
            partition_count=PARTS,
            seed=7,
        )
    )
    measured = [result for result in replayed if not result.partitions]
    # not the digests: this process may have other random generators than the workers had
    metrics = [result for result in replayed if not isinstance(result.actual, str)]
    assert len(measured) == 3 and all(result.matches for result in metrics)

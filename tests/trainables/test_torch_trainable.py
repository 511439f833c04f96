"""`hop.TorchTrainable`: the encoded state is complete, and every step is bit-reproducible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.datasets.partitions.partition import Partition, partition_of_arrays
from hopyard.datasets.partitions.split import split_dataset
from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError
from hopyard.sdk import rng_state
from hopyard.trainables import torch_state
from hopyard.trainables.config import Config
from hopyard.trainables.load import load
from hopyard.trainables.metric_aggregation import check_gathered_size, row_mean
from hopyard.trainables.protocol import Reduce
from hopyard.trainables.torch_metrics import MeanMetrics
from hopyard.trainables.torch_state import TorchState
from hopyard.trainables.torch_trainable import TorchTrainable
from hopyard.trial_state.decode import decode
from hopyard.trial_state.encode import encode
from hopyard.trial_state.rng_seed import seed_torch
from tests.trainables.group_training import train_in_group

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

PARTS = 3


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def parts(tmp_path: Path) -> list[Partition]:
    """Partitions of 41, 41 and 40 rows of two clouds."""
    y = np.arange(122) % 2
    x = np.random.Generator(np.random.PCG64(0)).normal(size=(122, 4)).astype(np.float32) + 2 * y[
        :, None
    ].astype(np.float32)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", x)
    np.save(tmp_path / "data" / "y.npy", y)
    result = split_dataset(tmp_path / "data", PartitionPlan(parts=PARTS), "m", tmp_path / "cache")
    return [result.open(at) for at in range(PARTS)]


def net(config: Config) -> Any:
    return nn.Sequential(
        nn.Linear(4, int(config.get("width", 8))),
        nn.BatchNorm1d(int(config.get("width", 8))),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(8, 2),
    )


def make_trainable(**changed: Any) -> TorchTrainable:
    defaults: dict[str, Any] = {
        "model": net,
        "optimizer": lambda parameters, config: torch.optim.Adam(parameters, lr=config.lr),
        "loss": F.cross_entropy,
        "metrics": {"acc": "accuracy", "zero": lambda outputs, targets: 0.0},
        "schedule": lambda optimizer, config: torch.optim.lr_scheduler.MultiStepLR(
            optimizer, [1, 3], gamma=0.5
        ),
        "batch_size": 8,
    }
    return TorchTrainable(**{**defaults, **changed})


def bits(trainable: TorchTrainable, state: TorchState) -> bytes:
    return encode(trainable.capture(state)).to_bytes()


def encode_and_restore(trainable: TorchTrainable, state: TorchState, config: Config) -> TorchState:
    """Returns the state as another process decodes it."""
    return trainable.restore(decode(bytearray(bits(trainable, state))), config)


def visits(
    trainable: TorchTrainable,
    parts: list[Partition],
    *,
    hop: Callable[..., TorchState] | None,
    epochs: int = 3,
) -> TorchState:
    config = Config({"lr": 0.01}, epochs=epochs)
    state = trainable.init(config)
    for epoch in range(epochs):
        for part in parts:
            torch.rand(3)  # random numbers of other code change nothing
            state = hop(trainable, state, config.at(epoch)) if hop else state
            state = trainable.train(state, part, config.at(epoch))
    return state


SCHEDULES = {
    "none": {"schedule": None},
    "epoch": {},
    "batch": {
        "schedule": lambda optimizer, config, steps: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.05, total_steps=3 * steps
        ),
        "schedule_every": "batch",
    },
    "chained": {
        "schedule": lambda optimizer, config: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 2),
                torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
            ],
            milestones=[2],
        )
    },
    "sgd": {
        "optimizer": lambda parameters, config: torch.optim.SGD(
            parameters, lr=config.lr, momentum=0.9, nesterov=True
        )
    },
}


@pytest.fixture(params=["as it is", "without memory"])
def restore_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Selects how the small modules of these tests are created before they are filled."""
    if request.param == "without memory":
        monkeypatch.setattr(torch_state, "_SMALL_STATE_BYTES", 0)


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.usefixtures("restore_mode")
@pytest.mark.filterwarnings("error")
def test_hops_are_bit_identical_to_continuous_training(parts: list[Partition], kind: str) -> None:
    trainable = make_trainable(**SCHEDULES[kind])
    stayed, moved = visits(trainable, parts, hop=None), visits(trainable, parts, hop=encode_and_restore)
    assert bits(trainable, stayed) == bits(trainable, moved)
    assert [group["lr"] for group in stayed.optimizer.param_groups] == [
        group["lr"] for group in moved.optimizer.param_groups
    ]


def test_model_learns_and_is_evaluated(parts: list[Partition]) -> None:
    trainable = make_trainable()
    state = visits(trainable, parts, hop=None, epochs=8)
    before = bits(trainable, state)
    metrics = trainable.evaluate(state, parts[0], Config({"lr": 0.01}))
    assert metrics["acc"] > 0.85 and metrics["zero"] == 0
    outputs = state.model(torch.from_numpy(parts[0]["x"]))
    assert metrics["loss"] == pytest.approx(
        float(F.cross_entropy(outputs.detach(), torch.from_numpy(parts[0]["y"]))), rel=1e-5
    )
    assert bits(trainable, state) == before


def test_seeding_matches_pytorch() -> None:
    before = rng_state.capture()
    try:
        torch.manual_seed(5)
        expected = torch.rand(3), torch.get_rng_state()
        seed_torch(torch, 5)
        assert torch.equal(torch.rand(3), expected[0]) and torch.equal(torch.get_rng_state(), expected[1])
    finally:
        rng_state.restore(before)


def test_schedule_steps_once_per_epoch(parts: list[Partition]) -> None:
    trainable, config = make_trainable(), Config({"lr": 0.01})
    state = trainable.init(config)
    rates = []
    for epoch in (0, 0, 0, 1, 1, 1, 2, 3):
        state = trainable.train(encode_and_restore(trainable, state, config), parts[0], config.at(epoch))
        rates.append(state.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.01] * 3 + [0.005] * 4 + [0.0025])


def test_config_may_change_during_trial(parts: list[Partition]) -> None:
    """Population based training: the new learning rate continues at the old position of its schedule."""
    trainable, config = make_trainable(), Config({"lr": 0.01})
    state = trainable.train(trainable.init(config), parts[0], config.at(0))
    state = trainable.train(state, parts[1], config.at(1))
    changed = Config({"lr": 0.08})
    state = encode_and_restore(trainable, state, changed.at(1))
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.04)
    assert state.optimizer.param_groups[0]["initial_lr"] == 0.08
    state = trainable.train(encode_and_restore(trainable, state, changed.at(1)), parts[2], changed.at(3))
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.02)
    with pytest.raises(SpecError, match="does not fit the model"):
        encode_and_restore(trainable, state, Config({"lr": 0.08, "width": 9}))


@pytest.mark.parametrize("group", [(0, 1, 2), (2, 0)])
def test_group_result_equals_single_process_result(parts: list[Partition], group: tuple[int, ...]) -> None:
    """Each worker by itself, with a reduce that waits for the others, against one process with all
    partitions."""
    config = Config({"lr": 0.01})
    together = [parts[at] for at in sorted(group)]
    alone = make_trainable(schedule=None)
    expected = alone.train_together(alone.init(config), together, config, lambda arrays: arrays)

    def train(at: int, reduce: Reduce) -> bytes:
        own = make_trainable(schedule=None, model=net_without_dropout)
        return bits(own, own.train_together(own.init(config), [together[at]], config, reduce))

    same = make_trainable(schedule=None, model=net_without_dropout)
    assert train_in_group(len(together), train) == {
        bits(same, same.train_together(same.init(config), together, config, lambda arrays: arrays))
    }
    assert bits(alone, expected) != bits(alone, alone.init(config))


def net_without_dropout(config: Config) -> Any:
    """Without dropout, since threads of one process share their generators; `test_dropout…` covers
    dropout."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def test_random_numbers_per_partition_are_equal_in_group_and_alone(parts: list[Partition]) -> None:
    drawn: dict[int, list[float]] = {}

    class Draws(TorchTrainable):
        def training_loss(self, model: Any, inputs: Any, targets: Any, config: Config) -> Any:
            drawn.setdefault(int(inputs[0, 0] * 1e6), []).append(float(torch.rand(1)))
            return super().training_loss(model, inputs, targets, config)

    trainable = Draws(
        model=net_without_dropout,
        optimizer=lambda p, c: torch.optim.SGD(p, lr=0.0),
        loss=F.cross_entropy,
        batch_size=64,
    )
    config = Config({})
    trainable.train_together(trainable.init(config), parts, config, lambda arrays: arrays)
    together, drawn = drawn, {}
    for part in parts:
        trainable.train_together(trainable.init(config), [part], config, lambda arrays: arrays)
    assert together == drawn and len(drawn) == 3


def test_small_partitions_make_equal_number_of_steps() -> None:
    rows = [
        partition_of_arrays(
            {"x": np.zeros((n, 4), dtype=np.float32), "y": np.zeros(n, dtype=np.int64)},
            index=at,
            peers=(3, 2),
        )
        for at, n in enumerate((3, 2))
    ]
    trainable, config = make_trainable(model=net_without_norm, batch_size=1), Config({"lr": 0.01})
    trainable.train_together(trainable.init(config), rows, config, lambda arrays: arrays)


def net_without_norm(config: Config) -> Any:
    return nn.Linear(4, 2)


@pytest.mark.usefixtures("restore_mode")
def test_tied_weights_stay_tied(parts: list[Partition]) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    trainable, config = make_trainable(model=lambda config: Tied()), Config({"lr": 0.01})
    state = trainable.train(trainable.init(config), parts[0], config)
    restored = encode_and_restore(trainable, state, config)
    assert restored.model.second.weight is restored.model.first.weight
    assert bits(trainable, trainable.train(restored, parts[1], config)) == bits(
        trainable, trainable.train(state, parts[1], config)
    )


@pytest.mark.usefixtures("restore_mode")
def test_tensors_outside_state_dict_are_recreated(parts: list[Partition]) -> None:
    class Projects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fixed = torch.randn(4, 4)
            self.last = nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.last(x @ self.fixed)

    trainable, config = make_trainable(model=lambda config: Projects()), Config({"lr": 0.01})
    state = trainable.init(config)
    assert torch.equal(encode_and_restore(trainable, state, config).model.fixed, state.model.fixed)


def test_user_class_is_trainable(parts: list[Partition], tmp_path: Path) -> None:
    (tmp_path / "digits.py").write_text("""
import torch
from torch import nn
from torch.nn import functional as F
import hopyard as hop

class Digits(hop.TorchTrainable):
    loss = F.cross_entropy
    metrics = {"val_acc": "accuracy"}
    batch_size = 16

    def model(self, config):
        return nn.Linear(4, 2)

    def optimizer(self, parameters, config):
        return torch.optim.SGD(parameters, lr=config.lr)
""")
    trainable = load("digits.py:Digits", tmp_path)
    config = Config({"lr": 0.1})
    state = trainable.train(trainable.init(config), parts[0], config)
    assert set(trainable.evaluate(state, parts[0], config)) == {"loss", "val_acc"}


def test_tables_become_matrices_and_images_floats() -> None:
    seen: list[Any] = []

    def model(config: Config) -> Any:
        class Sees(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(1))

            def forward(self, x: Any) -> Any:
                seen.append(x)
                return self.weight * x.flatten(1).sum(1)

        return Sees()

    trainable = make_trainable(
        model=model,
        loss=lambda outputs, targets: (outputs - targets).square().mean(),
        metrics={},
        schedule=None,
    )
    config = Config({"lr": 0.1})
    table = partition_of_arrays({"a": np.arange(6), "b": np.arange(6) / 2, "label": np.zeros(6)})
    trainable.evaluate(trainable.init(config), table, config)
    assert seen[-1].tolist() == [[n, n / 2] for n in range(6)]
    pictures = partition_of_arrays(
        {"image": np.full((2, 5, 4, 3), 255, dtype=np.uint8), "label": np.zeros(2)}
    )
    trainable.evaluate(trainable.init(config), pictures, config)
    assert seen[-1].shape == (2, 3, 5, 4) and float(seen[-1].max()) == 1.0
    with pytest.raises(SpecError, match="which column is the target"):
        trainable.evaluate(
            trainable.init(config), partition_of_arrays({"a": np.zeros(3), "b": np.zeros(3)}), config
        )


def test_transforms_receive_complete_batches() -> None:
    trainable = make_trainable(
        transform=lambda batch, config, training: (
            torch.stack([batch["a"], batch["b"]] * 2, 1).float(),
            batch["c"],
        )
    )
    part = partition_of_arrays(
        {"a": np.arange(20.0), "b": np.arange(20), "c": np.arange(20, dtype=np.int32) % 2}
    )
    config = Config({"lr": 0.1})
    assert trainable.evaluate(trainable.train(trainable.init(config), part, config), part, config)["loss"] > 0


def test_user_data_loader_is_used(parts: list[Partition]) -> None:
    """Its shuffling is of the unit, too."""

    def loader(partition: Partition, config: Config, training: bool) -> Any:
        loaded = torch.utils.data.DataLoader(partition.torch_dataset(), batch_size=8, shuffle=training)
        return ((batch["x"], batch["y"]) for batch in loaded)

    trainable = make_trainable(loader=loader, model=net_without_norm)
    assert bits(trainable, visits(trainable, parts, hop=None)) == bits(
        trainable, visits(trainable, parts, hop=encode_and_restore)
    )
    config = Config({"lr": 0.1})
    assert set(trainable.evaluate(trainable.init(config), parts[0], config)) == {"loss", "acc", "zero"}
    with pytest.raises(SpecError, match="cannot be equal on all workers"):
        trainable.train_together(trainable.init(config), parts, config, lambda arrays: arrays)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"loader": net, "trunk": net}, "cannot be combined with `transform` or `trunk`"),
        ({"modle": net}, "no `modle`"),
        ({"loss": None}, "needs `loss`"),
        ({"schedule_every": "week"}, "schedule_every is `week`"),
        ({"metrics": {"acc": "acuracy"}}, "metric `acc` is `acuracy`"),
    ],
)
def test_invalid_parts_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_trainable(**changed)


def test_metrics_of_whole_set_get_all_rows(parts: list[Partition]) -> None:
    """They equal one computation, also over partitions of different sizes. Means over rows are not
    gathered."""

    def rmse(outputs: Any, targets: Any) -> Any:
        return (outputs[:, 0] - targets).square().mean().sqrt()

    def area(outputs: Any, targets: Any) -> float:
        positive, negative = outputs[targets == 1, 1], outputs[targets == 0, 1]
        return float((positive[:, None] > negative[None, :]).float().mean())

    metrics = {
        "rmse": rmse,
        "area": area,
        "acc": "accuracy",
        "first": row_mean(lambda out, _: out[:, 0].mean()),
    }
    trainable, config = make_trainable(metrics=metrics), Config({"lr": 0.1})
    state = trainable.train(trainable.init(config), parts[0], config)
    small = partition_of_arrays({"x": parts[0]["x"][:5] * 3, "y": parts[0]["y"][:5]}, index=3)
    gathered = [trainable.gather(state, part, config) for part in (*parts, small)]
    assert all(set(means) == {"loss", "acc", "first"} for means, _ in gathered)
    measured = trainable.measure([decode(bytearray(encode(part).to_bytes())) for _, part in gathered], config)
    rows = [trainable.predict(state, part, config) for part in (*parts, small)]
    outputs = torch.from_numpy(np.concatenate(rows))
    targets = torch.from_numpy(np.concatenate([part["y"] for part in (*parts, small)]))
    assert measured == {"rmse": float(rmse(outputs, targets)), "area": area(outputs, targets)}
    alone = trainable.evaluate(state, small, config)
    assert alone["rmse"] == pytest.approx(float(rmse(outputs[-5:], targets[-5:])))
    assert make_trainable(metrics={"acc": "accuracy"}).gather(state, small, config)[1] is None


def test_outputs_that_cannot_be_joined_name_the_alternative(parts: list[Partition]) -> None:
    class Padded(nn.Linear):  # type: ignore[misc]
        def forward(self, inputs: Any) -> Any:
            outputs = super().forward(inputs)
            return outputs[:, : 1 + (len(outputs) < 512)]

    big = partition_of_arrays({"x": np.zeros((600, 4), "f4"), "y": np.zeros((600, 1), "f4")})
    trainable = make_trainable(
        model=lambda config: Padded(4, 2),
        loss=lambda outputs, targets: outputs.mean(),
        schedule=None,
        metrics={"first": lambda outputs, targets: outputs.mean()},
    )
    config = Config({"lr": 0.1})
    with pytest.raises(SpecError, match="cannot be joined") as caught:
        trainable.gather(trainable.init(config), big, config)
    assert "hop.row_mean" in caught.value.hints[0]
    with pytest.raises(SpecError, match="2,048 MiB, and at most 512 MiB are gathered"):
        check_gathered_size(1 << 30, 100, 200)


@pytest.mark.parametrize(
    "each",
    [lambda outputs, targets: outputs.argmax(1) == targets, lambda outputs, targets: np.zeros(len(targets))],
)
def test_metric_must_be_single_number(parts: list[Partition], each: Callable[..., Any]) -> None:
    trainable = make_trainable(metrics={"each": row_mean(each)})
    with pytest.raises(SpecError, match=r"`each` has shape \(41,\), not one number"):
        trainable.evaluate(trainable.init(Config({"lr": 0.1})), parts[0], Config({"lr": 0.1}))


def test_metric_results_of_any_type_are_averaged() -> None:
    """Also of a tensor that it uses for every batch, and of numbers of all kinds."""
    means, running = MeanMetrics(), torch.zeros(1)
    kinds = [
        True,
        3,
        torch.tensor([2]),
        np.float32(5.5),
        torch.tensor(1.5, requires_grad=True),
        np.full((1, 1), 4, np.int8),
    ]
    for at, value in enumerate(kinds):
        means.add(at + 1, {"same": running.fill_(at), "kinds": value})
    result = means.compute()
    assert result == {
        "same": pytest.approx(sum(at * (at + 1) for at in range(6)) / 21),
        "kinds": pytest.approx((1 + 6 + 6 + 22 + 7.5 + 24) / 21),
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": lambda config: 3}, "returned int, not a torch"),
        ({"model": lambda config: nn.LazyLinear(3)}, "lazy parameters"),
        ({"optimizer": lambda parameters, config: None}, "returned NoneType, not a torch.optim.Optimizer"),
        ({"batch_size": 0}, "batch_size is 0"),
        (
            {"schedule": lambda optimizer, config: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)},
            "takes no metric",
        ),
    ],
)
def test_return_values_of_functions_are_checked(
    parts: list[Partition], changed: dict[str, Any], message: str
) -> None:
    trainable = make_trainable(**changed)
    with pytest.raises(SpecError, match=message) as error:
        trainable.train(trainable.init(Config({"lr": 0.1})), parts[0], Config({"lr": 0.1}))
    assert error.value.message

"""`hop.KerasTrainable` on the PyTorch backend."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hopyard.datasets.partitions.partition import Partition, partition_of_arrays
from hopyard.errors import SpecError
from hopyard.trainables.config import Config
from hopyard.trainables.keras_trainable import KerasTrainable
from hopyard.trainables.protocol import Reduce
from hopyard.trial_state.decode import decode
from hopyard.trial_state.encode import encode
from tests.trainables.group_training import train_in_group

pytest.importorskip("torch", reason="the backend is PyTorch here")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", minversion="3.3", reason="needs Keras 3")
pytestmark = [
    pytest.mark.keras,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def model(config: Config) -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(int(config.get("width", 8)), "relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(2),
        ]
    )


def make_trainable(**changed: Any) -> KerasTrainable:
    defaults: dict[str, Any] = {
        "model": model,
        "optimizer": lambda config: keras.optimizers.Adam(config.lr),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
        "batch_size": 8,
    }
    return KerasTrainable(**{**defaults, **changed})


@pytest.fixture(scope="module")
def parts() -> list[Partition]:
    draws = np.random.Generator(np.random.PCG64(0))
    y = np.arange(60) % 2
    x = draws.normal(size=(60, 4)) + 2 * y[:, None]
    return [
        partition_of_arrays(
            {"x": x[at::2][np.argsort(draws.random(30))], "y": y[at::2]}, index=at, peers=(30, 30)
        )
        for at in (0, 1)
    ]


def bits(state: Any) -> bytes:
    return encode(state).to_bytes()


def visits(trainable: KerasTrainable, parts: list[Partition], *, apart: bool) -> Any:
    """apart: each unit in a trainable of its own, as in another process."""
    config = Config({"lr": 0.02}, epochs=2)
    state = trainable.init(config)
    for epoch in range(2):
        for part in parts:
            state = (make_trainable() if apart else trainable).train(
                decode(bytearray(bits(state))), part, config.at(epoch)
            )
    return state


def test_hops_are_bit_identical_to_continuous_training(parts: list[Partition]) -> None:
    assert bits(visits(make_trainable(), parts, apart=False)) == bits(
        visits(make_trainable(), parts, apart=True)
    )


def test_model_learns_and_is_evaluated() -> None:
    y = np.arange(300) % 2
    part = partition_of_arrays(
        {"x": np.random.Generator(np.random.PCG64(1)).normal(size=(300, 4)) + 2 * y[:, None], "y": y}
    )
    trainable, config = make_trainable(), Config({"lr": 0.02})
    state = trainable.init(config)
    for epoch in range(3):
        state = trainable.train(state, part, config.at(epoch))
    metrics = trainable.evaluate(state, part, config)
    assert metrics["accuracy"] > 0.9
    outputs = np.asarray(
        keras.ops.convert_to_numpy(
            trainable.whole(state, config)(part["x"].astype(np.float32), training=False)
        )
    )
    assert metrics["accuracy"] == pytest.approx(float((outputs.argmax(1) == y).mean()))
    assert metrics["loss"] == pytest.approx(float(trainable.loss(y, outputs)), rel=1e-4)


def test_metrics_of_partitions_add_up_to_those_of_whole_set() -> None:
    draws = np.random.Generator(np.random.PCG64(2))
    x, y = draws.normal(size=(97, 4)), (draws.random(97) < 0.4).astype(np.float32)

    def one_number(config: Config) -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])

    def make() -> KerasTrainable:
        metrics = [keras.metrics.AUC(name="area"), keras.metrics.RootMeanSquaredError(name="rmse")]
        return make_trainable(model=one_number, loss="binary_crossentropy", metrics=metrics)

    trainable, config = make(), Config({"lr": 0.02})
    state = trainable.init(config)
    cuts = [0, 70, 75, 97]
    gathered = [
        trainable.gather(state, partition_of_arrays({"x": x[low:high], "y": y[low:high]}), config)
        for low, high in pairwise(cuts)
    ]
    assert not any(means for means, _ in gathered)
    # in another process, that has not evaluated anything
    measured = make().measure([decode(bytearray(bits(part))) for _, part in gathered], config)
    whole = trainable.evaluate(state, partition_of_arrays({"x": x, "y": y}), config)
    assert measured == pytest.approx(whole, rel=1e-5)
    scores = keras.ops.convert_to_numpy(trainable.whole(state, config)(x.astype(np.float32)))[:, 0]
    assert measured["rmse"] == pytest.approx(float(np.sqrt(((scores - y) ** 2).mean())), rel=1e-4)


def test_trials_with_equal_parameters_do_not_share_a_state(parts: list[Partition]) -> None:
    trainable, config = make_trainable(), Config({"lr": 0.02})
    one = trainable.init(config)
    before = bits(one)
    two = trainable.train(one, parts[0], config)
    assert bits(one) == before != bits(two)


def test_learning_rate_follows_schedule_and_config(parts: list[Partition]) -> None:
    trainable = make_trainable(schedule=lambda epoch, config: config.lr / (epoch + 1))
    config = Config({"lr": 0.02})
    state = trainable.train(trainable.init(config), parts[0], config.at(1))
    assert float(trainable.whole(state, config).optimizer.learning_rate) == pytest.approx(0.01)
    plain = make_trainable()
    state = plain.init(config)
    changed = Config({"lr": 0.5})
    state = plain.train(state, parts[0], changed)
    assert state["rate"] == pytest.approx(0.5)
    assert float(plain.whole(state, changed).optimizer.learning_rate) == pytest.approx(0.5)
    with pytest.raises(SpecError, match="does not fit the model"):
        plain.train(state, parts[0], Config({"lr": 0.5, "width": 9}))


def test_compiled_model_with_schedule_is_accepted(parts: list[Partition]) -> None:
    def compiled(config: Config) -> Any:
        compiled_model = model(config)
        compiled_model.compile(
            keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)),
            "sparse_categorical_crossentropy",
        )
        return compiled_model

    trainable, config = KerasTrainable(model=compiled), Config({})
    state = trainable.train(trainable.init(config), parts[0], config)
    assert state["rate"] is None
    assert set(trainable.evaluate(state, parts[0], config)) == {"loss"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": None}, "needs `model`"),
        ({"modle": model}, "no `modle`"),
        ({"model": lambda config: 3}, "returned int, not a keras"),
        ({"model": lambda config: keras.Sequential([keras.layers.Dense(2)])}, "not built"),
        ({"loss": None}, "not compiled"),
    ],
)
def test_invalid_models_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_trainable(**changed).init(Config({"lr": 0.1}))


# -- several workers on one state ----------------------------------------------------------------------------


def test_group_step_uses_mean_of_gradients() -> None:
    """Against gradients by hand: of half the squared error of a line, with SGD."""
    draws = np.random.Generator(np.random.PCG64(3))
    xs = [draws.normal(size=(6, 2)).astype(np.float32) for _ in range(2)]
    rows = [
        partition_of_arrays(
            {"x": x, "y": (x @ [1.0, -2.0]).astype(np.float32)[:, None]}, index=at, peers=(6, 6)
        )
        for at, x in enumerate(xs)
    ]
    line = KerasTrainable(
        model=lambda config: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)]),
        optimizer=lambda config: keras.optimizers.SGD(0.1),
        loss="mean_squared_error",
        batch_size=6,
    )
    config = Config({})
    state = line.init(config)
    weights = state["weights"][0].copy()
    gradients = [2 * x.T @ (x @ weights - part["y"]) / 6 for x, part in zip(xs, rows, strict=True)]
    trained = line.train_together(state, rows, config, lambda arrays: arrays)
    assert np.allclose(trained["weights"][0], weights - 0.1 * (gradients[0] + gradients[1]) / 2, atol=1e-6)


def test_group_of_one_partition_equals_train(parts: list[Partition]) -> None:
    """Dropout and all, where the batches are the same: 30 rows, 10 at a time."""
    config, alone = (
        Config({"lr": 0.02}),
        partition_of_arrays({name: parts[0][name] for name in "xy"}, index=0, peers=(30,)),
    )
    one, other = make_trainable(batch_size=10), make_trainable(batch_size=10)
    together = one.train_together(one.init(config), [alone], config, lambda arrays: arrays)
    apart = other.train(other.init(config), alone, config)
    assert all(
        np.allclose(a, b, atol=1e-5) for a, b in zip(together["weights"], apart["weights"], strict=True)
    )


@pytest.mark.parametrize("group", [(0, 1), (1,)])
def test_group_result_equals_single_process_result(parts: list[Partition], group: tuple[int, ...]) -> None:
    """Separate workers with a waiting reduce, against one process with all partitions: bit-identical."""
    config, together = Config({"lr": 0.02}), [parts[at] for at in group]

    def train(at: int, reduce: Reduce) -> bytes:
        own = normed()
        return bits(own.train_together(own.init(config), [together[at]], config, reduce))

    states = train_in_group(len(together), train)
    single = normed()
    assert states == {
        bits(single.train_together(single.init(config), together, config, lambda arrays: arrays))
    }


def normed() -> KerasTrainable:
    """Without dropout, since threads of one process share its generators."""
    layers = keras.layers
    return make_trainable(
        model=lambda config: keras.Sequential(
            [keras.Input((4,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(2)]
        )
    )

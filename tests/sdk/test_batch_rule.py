"""The batch-size rule, against the closed form of Goyal et al. 2017, and in scripts."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.errors import SpecError
from hopyard.sdk.batch_rule import BatchRule

from .scripts import Replica

COUNT = st.integers(1, 4096)
RATE = st.floats(1e-6, 10)


@settings(max_examples=60, deadline=None)
@given(COUNT, COUNT, st.integers(1, 512), st.integers(1, 16), RATE, st.sampled_from(["linear", "sqrt"]))
def test_rate_grows_with_the_factor_or_its_root(
    standard: int, batch: int, world: int, accumulation: int, lr: float, rule: str
) -> None:
    scale = BatchRule(standard, rule, accumulation).apply({"lr": lr, "batch_size": batch}, world)
    factor = batch * world * accumulation / standard
    assert scale.lr == pytest.approx(lr * (factor if rule == "linear" else math.sqrt(factor)))
    assert scale.values() == {"lr": scale.lr} and scale.total_samples is None
    assert scale.lr_at(0) == scale.lr_at(10**9) == scale.lr  # no warm-up


@settings(max_examples=60, deadline=None)
@given(COUNT, COUNT, st.integers(1, 64), RATE, COUNT, st.integers(0, 200_000))
def test_warmup_is_linear_in_samples_from_given_to_scaled_rate(
    standard: int, batch: int, world: int, lr: float, warmup: int, step: int
) -> None:
    given_values = {"lr": lr, "batch_size": batch, "warmup_steps": warmup}
    scale = BatchRule(standard).apply(given_values, world)
    k = batch * world / standard
    part = min(1, step * k / warmup)  # steps of the standard batch
    start, target = min(lr, k * lr), k * lr
    assert scale.lr_at(step) == pytest.approx(start + (target - start) * part)
    assert scale.lr_at(step) == scale.lr_at(samples=step * batch * world)
    assert scale.lr_at(int(scale.values()["warmup_steps"])) == scale.lr
    from_zero = BatchRule(standard, warmup_from=0.0).apply(given_values, world)
    assert from_zero.lr_at(step) == pytest.approx(target * part)


@settings(max_examples=60, deadline=None)
@given(COUNT, COUNT, st.integers(1, 64), COUNT, COUNT)
def test_counts_keep_their_samples(standard: int, batch: int, world: int, steps: int, every: int) -> None:
    given_values = {"lr": 0.1, "batch_size": batch, "steps": steps, "eval_every": every}
    scale = BatchRule(standard).apply(given_values, world)
    values, size = scale.values(), batch * world
    assert scale.total_samples == steps * standard
    assert 0 <= values["steps"] * size - steps * standard < size
    assert abs(values["eval_every"] * size - every * standard) <= size / 2 or values["eval_every"] == 1


def test_imagenet_in_one_hour() -> None:
    """The values of the paper: 256 GPUs with 32 images each, 5 of 90 epochs of warm-up."""
    epoch = 5000
    given_values = {"lr": 0.1, "batch_size": 32, "warmup_steps": 5 * epoch, "steps": 90 * epoch}
    scale = BatchRule(256).apply(given_values, 256)
    assert scale.values() == {"lr": 3.2, "warmup_steps": 782, "steps": 14063}
    assert (scale.lr_at(0), scale.lr_at(782)) == (0.1, 3.2)
    assert scale.text(given_values) == (
        "batch 32 x 256 processes = 8192, 32 x the standard 256 (linear): "
        "lr 0.1 -> 3.2, warmup_steps 25000 -> 782, steps 450000 -> 14063"
    )


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        ({}, {"batch_size": 64}, "hop.params has no `lr`"),
        ({}, {"lr": 0.1}, "hop.params has no `batch_size`"),
        ({"lr": "rate"}, {"lr": 0.1, "batch_size": 64}, "hop.params has no `rate`"),
        ({"steps": "max"}, {"lr": 0.1, "batch_size": 64}, "hop.params has no `max`"),
        ({"accumulation": "acc"}, {"lr": 0.1, "batch_size": 64}, "hop.params has no `acc`"),
        ({"accumulation": 0}, {"lr": 0.1, "batch_size": 64}, "the accumulation is 0"),
        ({"standard": 0}, {}, "the standard batch is 0"),
        ({"standard": 2.5}, {}, "the standard batch is 2.5"),
        ({"rule": "cubic"}, {}, "there is no rule 'cubic'"),
        ({"warmup_from": -1}, {}, "warmup_from is -1"),
        ({}, {"lr": 0, "batch_size": 64}, "`lr` is 0"),
        ({}, {"lr": math.inf, "batch_size": 64}, "`lr` is inf"),
        ({}, {"lr": "x", "batch_size": 64}, "`lr` is 'x'"),
        ({}, {"lr": 0.1, "batch_size": 0}, "`batch_size` is 0"),
        ({}, {"lr": 0.1, "batch_size": True}, "`batch_size` is True"),
        ({}, {"lr": 0.1, "batch_size": 64, "steps": 0}, "`steps` is 0"),
        ({}, {"lr": 0.1, "batch_size": 64, "warmup_steps": 0.5}, "`warmup_steps` is 0.5"),
    ],
)
def test_bad_input_is_named_with_a_hint(options: Any, values: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"per_batch: {message}")) as caught:
        BatchRule(**{"standard": 256, **options}).apply(values, 1)
    assert caught.value.hints


def test_unset_or_excluded_counts_stay() -> None:
    values = {"lr": 0.1, "batch_size": 512, "steps": 100, "eval_every": None}
    assert BatchRule(256, steps=None).apply(values, 1).values() == {"lr": 0.2}
    scale = BatchRule(256).apply(values, 1)
    for arguments in ({}, {"step": 1, "samples": 1}, {"step": -1}):
        with pytest.raises(SpecError, match="lr_at"):
            scale.lr_at(**arguments)


SCRIPT = """
import copy, pickle
import hopyard as hop
from hopyard.errors import SpecError
given = hop.params(lr=0.1, batch_size=64, warmup_steps=8, steps=100, name="x")
p = given.per_batch(128)
print(dict(p), p.lr_at(0), round(p.lr_at(2), 9), p.scaling.global_batch, given.lr, hop.run().params["lr"])
for other in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
    assert other == p and other.lr_at(2) == p.lr_at(2)
try:
    given["batch_size"] = 0
except SpecError as error:
    print(error.message, given.batch_size, p.batch_size)
given["lr"] = 0.5
print(p.lr, given.lr)
"""


def test_script_gets_values_for_its_gang_and_records_both(replica: Replica) -> None:
    replica.env["HOPYARD_PARAMS"] = '{"lr": 0.2}'
    result = replica.run(SCRIPT, WORLD_SIZE="4")
    assert result.stdout.splitlines() == [
        "{'lr': 0.4, 'batch_size': 64, 'warmup_steps': 4, 'steps': 50, 'name': 'x'} 0.2 0.3 256 0.2 0.2",
        "per_batch: `batch_size` is 0, not a whole number from 1 64 64",
        "1.0 0.5",
    ]
    assert (
        "hopyard: batch 64 x 4 processes = 256, 2 x the standard 128 (linear): lr 0.2 -> 0.4, "
        "warmup_steps 8 -> 4, steps 100 -> 50\n" in result.stderr
    )
    first, second = replica.events_of("scaled")
    assert first["values"] == {
        "lr.scaled": 0.4,
        "warmup_steps.scaled": 4,
        "steps.scaled": 50,
        "batch_size.global": 256,
    }
    assert second["values"]["lr.scaled"] == 1.0
    assert replica.events_of("params")[0]["values"]["lr"] == 0.2

    # a requeue with half of the processes, of which rank 1 is silent
    quiet = replica.run(SCRIPT, WORLD_SIZE="2", RANK="1")
    assert quiet.stdout.startswith("{'lr': 0.2, 'batch_size': 64, 'warmup_steps': 8, 'steps': 100")
    assert "standard" not in quiet.stderr and len(replica.events_of("scaled")) == 2

"""The batch-size rule: how hyperparameters for a standard batch change with the real global batch.

Goyal et al. 2017, "Accurate, Large Minibatch SGD": with a batch k times as large, the learning rate is k
times as large, and a gradual warm-up leads from the given rate to it. Counts of steps keep their number of
samples, so they are divided by k. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hopyard.backports import dataclass
from hopyard.errors import SpecError

RULES: Mapping[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt}


@dataclass(frozen=True, slots=True)
class BatchRule:
    """What is scaled, and how. standard: the batch that the given values are for. rule: a name in RULES.
    accumulation: batches per step of the optimizer, or the name of the parameter with their number. lr,
    batch_size, warmup, steps, eval_every: names of parameters; None for one that is not scaled. warmup_from:
    the rate of step 0; None for the given rate, as in the paper."""

    standard: int
    rule: str = "linear"
    accumulation: int | str = 1
    lr: str = "lr"
    batch_size: str = "batch_size"
    warmup: str | None = "warmup_steps"
    steps: str | None = "steps"
    eval_every: str | None = "eval_every"
    warmup_from: float | None = None

    def __post_init__(self) -> None:
        """Raises SpecError."""
        _check_count("the standard batch", self.standard, "for example per_batch(256)")
        if self.rule not in RULES:
            raise SpecError(
                f"per_batch: there is no rule {self.rule!r}", hints=('use rule="linear" or rule="sqrt"',)
            )
        if self.warmup_from is not None and not _is_rate(self.warmup_from, minimum=0):
            raise SpecError(
                f"per_batch: warmup_from is {self.warmup_from!r}",
                hints=("give the rate of step 0, for example warmup_from=0.0",),
            )

    def apply(self, given: Mapping[str, Any], world_size: int) -> BatchScale:
        """Returns the values for the batch of `world_size` processes. Raises SpecError for a missing or an
        invalid parameter."""
        _check_count("the world size", world_size, "give the number of processes that train: world_size=4")
        rate = self._find(given, "lr", self.lr, "lr=0.1")
        if not _is_rate(rate, minimum=0) or rate == 0:
            raise SpecError(
                f"per_batch: `{self.lr}` is {rate!r}, not a number above 0",
                hints=("a learning rate is a number above 0, for example lr=0.1",),
            )
        batch_size = self._find(given, "batch_size", self.batch_size, "batch_size=64")
        _check_count(f"`{self.batch_size}`", batch_size, "it is the batch of one process, for example 64")
        accumulation = self.accumulation
        if isinstance(accumulation, str):
            accumulation = self._find(given, "accumulation", accumulation, f"{accumulation}=4")
        _check_count("the accumulation", accumulation, "give the batches per step of the optimizer")
        counts = {}
        for option in ("warmup", "steps", "eval_every"):
            name = getattr(self, option)
            if name is None or (name not in given and name == BatchRule.__dataclass_fields__[option].default):
                continue
            count = self._find(given, option, name, f"{name}=1000")
            if count is not None:
                least = 0 if option == "warmup" else 1
                _check_count(f"`{name}`", count, "it is a whole number of steps", least=least)
                counts[option] = count
        return BatchScale(self, float(rate), batch_size, world_size, int(accumulation), counts)

    def _find(self, given: Mapping[str, Any], option: str, name: str, example: str) -> Any:
        if name not in given:
            raise SpecError(
                f"per_batch: hop.params has no `{name}`",
                hints=(f"declare it: hop.params({example}, …)", f'or name it: per_batch(…, {option}="NAME")'),
            )
        return given[name]


@dataclass(frozen=True, slots=True)
class BatchScale:
    """The result of a rule. counts: the given `warmup`, `steps` and `eval_every`, in steps of the standard
    batch."""

    rule: BatchRule
    given_lr: float
    batch_size: int
    world_size: int
    accumulation: int
    counts: Mapping[str, int]

    @property
    def global_batch(self) -> int:
        """Samples per step of the optimizer, in all processes together."""
        return self.batch_size * self.world_size * self.accumulation

    @property
    def factor(self) -> float:
        """The global batch in standard batches."""
        return self.global_batch / self.rule.standard

    @property
    def lr(self) -> float:
        """The learning rate after the warm-up."""
        return self.given_lr * RULES[self.rule.rule](self.factor)

    @property
    def total_samples(self) -> int | None:
        """Samples in all steps, the same for each batch; None without a number of steps."""
        return self.counts["steps"] * self.rule.standard if "steps" in self.counts else None

    def values(self) -> dict[str, float | int]:
        """Returns the effective values by the names of the parameters."""
        values: dict[str, float | int] = {self.rule.lr: self.lr}
        for option, count in self.counts.items():
            samples = count * self.rule.standard
            if option == "eval_every":  # to the nearest
                scaled = max(1, (2 * samples + self.global_batch) // (2 * self.global_batch))
            else:  # no sample fewer
                scaled = -(-samples // self.global_batch)
            values[getattr(self.rule, option)] = scaled
        return values

    def lr_at(self, step: int | None = None, *, samples: int | None = None) -> float:
        """Returns the rate of a step (from 0), or after a number of samples: it grows linearly during the
        warm-up, then it is constant. Raises SpecError unless one of them is given, from 0."""
        if (step is None) == (samples is None):
            raise SpecError("lr_at takes a step or samples=…", hints=("for example p.lr_at(step)",))
        if samples is None:
            samples = (step or 0) * self.global_batch
        if samples < 0:
            raise SpecError("lr_at: steps and samples are counted from 0")
        target, warmup = self.lr, self.counts.get("warmup", 0) * self.rule.standard
        if samples >= warmup:
            return target
        # a smaller batch than the standard one must not begin above its own rate
        start = min(self.given_lr, target) if self.rule.warmup_from is None else self.rule.warmup_from
        return start + (target - start) * (samples / warmup)

    def text(self, given: Mapping[str, Any]) -> str:
        """Returns one line: `batch 64 x 4 processes = 256, 2 x the standard 128 (linear): lr 0.1 -> 0.2`."""
        parts = [f"batch {self.batch_size}"]
        if self.world_size > 1:
            parts.append(f"{self.world_size} processes")
        if self.accumulation > 1:
            parts.append(f"{self.accumulation} accumulated")
        total = f" = {self.global_batch}" if len(parts) > 1 else ""
        changes = ", ".join(
            f"{name} {given[name]:.6g} -> {value:.6g}"
            if isinstance(value, float)
            else f"{name} {given[name]} -> {value}"
            for name, value in self.values().items()
        )
        return (
            f"{' x '.join(parts)}{total}, {self.factor:.6g} x the standard {self.rule.standard} "
            f"({self.rule.rule}): {changes}"
        )


def _check_count(what: str, value: object, hint: str, *, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"per_batch: {what} is {value!r}, not a whole number from {least}", hints=(hint,))


def _is_rate(value: object, *, minimum: float) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= minimum
    )

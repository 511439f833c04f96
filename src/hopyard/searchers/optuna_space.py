"""Converts a space for Optuna: every parameter is an axis of plain numbers, so that no value is lost on the
way there and back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Domain, Integer, Parameter, Space, Uniform
from hopyard.searchers.sampling import interpolate_log, last_step, nearest_value, quantise


@dataclass(frozen=True, slots=True)
class Axis:
    """kind: `categorical` (one of 0 … high), `int` (low to high: steps above the lowest value, or with log
    the value itself), `float` (the share of the way from the lowest value to the highest, in their logarithms
    if the domain has them). `value_at` converts a position to a value, `position_of` a value to its
    position."""

    name: str
    domain: Domain
    kind: str
    low: float
    high: float
    log: bool = False

    def distribution(self, optuna: Any) -> Any:
        distributions = optuna.distributions
        if self.kind == "categorical":
            return distributions.CategoricalDistribution(tuple(range(int(self.high) + 1)))
        if self.kind == "int":
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)

    def suggest(self, trial: Any) -> float | int:
        """Returns the position that a trial of Optuna suggests."""
        if self.kind == "categorical":
            return trial.suggest_categorical(self.name, tuple(range(int(self.high) + 1)))  # type: ignore[no-any-return]
        if self.kind == "int":
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)  # type: ignore[no-any-return]
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)  # type: ignore[no-any-return]

    def value_at(self, position: float) -> ParamValue:
        """Returns the value at a position. Reals lose their last digits, in which machines differ; integers
        and choices are exact."""
        domain = self.domain
        if isinstance(domain, Choice):
            return domain.values[int(position)]
        assert not isinstance(domain, Constant)
        if self.kind == "float":
            return nearest_value(domain, _value_between(domain, position))
        return nearest_value(domain, position) if self.log else quantise(domain, int(position))

    def position_of(self, value: ParamValue) -> float | int:
        """Returns the position of a value of the domain."""
        domain = self.domain
        if isinstance(domain, Choice):
            # 1 and True are equal, but different choices
            indices = [
                index
                for index, candidate in enumerate(domain.values)
                if type(candidate) is type(value) and candidate == value
            ]
            return indices[0] if indices else domain.values.index(value)
        assert isinstance(domain, Uniform | Integer) and isinstance(value, int | float)
        if self.kind == "float":
            return min(1.0, max(0.0, _share_of(domain, value)))
        return int(value) if self.log else round((value - domain.low) / (domain.step or 1))


def axes(space: Space) -> dict[str, Axis]:
    """Returns the axes of all parameters that can have more than one value."""
    all_axes = (_axis(parameter) for parameter in space.parameters)
    return {axis.name: axis for axis in all_axes if axis is not None}


def _axis(parameter: Parameter) -> Axis | None:
    name, domain = parameter.name, parameter.domain
    if isinstance(domain, Constant):
        return None
    if isinstance(domain, Choice):
        kind = "int" if is_monotonic(domain.values) else "categorical"
        return Axis(name, domain, kind, 0, len(domain.values) - 1) if len(domain.values) > 1 else None
    if domain.low == domain.high or (domain.step is not None and not last_step(domain)):
        return None
    if isinstance(domain, Integer) and domain.log:
        return Axis(name, domain, "int", domain.low, domain.high, log=True)
    if isinstance(domain, Uniform) and (domain.log or domain.step is None):
        return Axis(name, domain, "float", 0, 1)
    return Axis(name, domain, "int", 0, last_step(domain))


def _value_between(domain: Uniform | Integer, share: float) -> float:
    return (
        interpolate_log(domain.low, domain.high, share)
        if domain.log
        else domain.low + share * (domain.high - domain.low)
    )


def _share_of(domain: Uniform | Integer, value: float) -> float:
    low, high, value = (
        (log(x) for x in (domain.low, domain.high, value)) if domain.log else (domain.low, domain.high, value)
    )
    return (value - low) / (high - low) if high > low else 0.0


def is_monotonic(values: tuple[ParamValue, ...]) -> bool:
    """Returns whether the values are numbers that rise or fall. Such values are neighbours (16, 32, 64): the
    result of one predicts the result of the next."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or len(values) < 3:
        return False
    return all(a < b for a, b in pairwise(numbers)) or all(a > b for a, b in pairwise(numbers))


def is_conditional(space: Space) -> bool:
    return any(parameter.conditions for parameter in space.parameters)


def single_value(domain: Domain) -> ParamValue:
    """Returns the value of a domain that has no other."""
    if isinstance(domain, Constant):
        return domain.value
    return domain.values[0] if isinstance(domain, Choice) else domain.low

"""A search space: the parameters of a study, and from where each takes its values.
Sampling is `search.draw`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from hopyard.domain.run import ParamValue
from hopyard.domain.suggest import unknown_name_hints
from hopyard.errors import SpecError


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these, each as likely; in a grid, all of them. Never empty."""

    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True)
class Uniform:
    """A real number from low to high, both included. log: uniform in its logarithm (low > 0). step: rounded
    to the nearest multiple of step above low (quantised), after log. points: how many values a grid takes of
    it, evenly (in the logarithm)."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number from low to high, both included. log, step, points: as of `Uniform`; without log and
    points, a grid takes every step."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """Always this. A study tells its trials, searchers leave it alone."""

    value: ParamValue


Domain = Choice | Uniform | Integer | Constant


@dataclass(frozen=True, slots=True)
class Condition:
    """The parameter exists only where `parameter` exists and has one of these values."""

    parameter: str
    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """conditions: all must hold. A parameter may depend only on others that stand before it in
    `Space.parameters`."""

    name: str
    domain: Domain
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Space:
    parameters: tuple[Parameter, ...]

    def is_active(self, parameter: Parameter, chosen: Mapping[str, ParamValue]) -> bool:
        """Whether it exists where these were chosen of those before it."""
        return all(c.parameter in chosen and chosen[c.parameter] in c.values for c in parameter.conditions)


def check_space(space: Space, path: str = "space") -> None:
    """Raise SpecError, naming the parameter's path and what would do, unless every parameter has a point and
    depends only on values that parameters before it can have."""
    if not space.parameters:
        raise SpecError(
            f"{path}: the space is empty",
            hints=("name at least one parameter, such as `lr: {log: [1e-4, 1e-1]}`",),
        )
    before: dict[str, Domain] = {}
    for parameter in space.parameters:
        here = f"{path}.{parameter.name}"
        if not parameter.name:
            raise SpecError(f"{path}: a parameter has no name")
        if parameter.name in before:
            raise SpecError(f"{here}: duplicate name")
        _check_domain(parameter.domain, here)
        for condition in parameter.conditions:
            _check_condition(condition, parameter.name, before, here)
        before[parameter.name] = parameter.domain


def _check_domain(domain: Domain, path: str) -> None:
    if isinstance(domain, Constant):
        return
    if isinstance(domain, Choice):
        if not domain.values:
            raise SpecError(f"{path}: an empty list of choices", hints=("name at least one value",))
        if any(isinstance(value, float) and not isfinite(value) for value in domain.values):
            raise SpecError(f"{path}: a value is not finite")
        return
    span = f"from {domain.low} to {domain.high}"
    if not (isfinite(domain.low) and isfinite(domain.high)):
        raise SpecError(f"{path}: the range {span} is not finite")
    if domain.low > domain.high:
        raise SpecError(f"{path}: the range {span} has no point", hints=("write the lower bound first",))
    if domain.log and domain.low <= 0:
        raise SpecError(
            f"{path}: the logarithm of {domain.low} does not exist",
            hints=("choose a lower bound above 0",),
        )
    if domain.step is not None and not (isfinite(domain.step) and domain.step > 0):
        raise SpecError(f"{path}: a step of {domain.step}", hints=("choose a step above 0",))
    if domain.points is not None and domain.points < 1:
        raise SpecError(f"{path}: {domain.points} points", hints=("choose at least 1 point",))


def _check_condition(condition: Condition, name: str, before: Mapping[str, Domain], path: str) -> None:
    on = condition.parameter
    if on not in before:
        why = "itself" if on == name else f"`{on}`, which is not defined before it"
        raise SpecError(
            f"{path}: depends on {why}", hints=unknown_name_hints(on, before, subject="before it")
        )
    if not condition.values or not any(_contains(before[on], value) for value in condition.values):
        shown = ", ".join(str(value) for value in condition.values) or "nothing"
        raise SpecError(f"{path}: exists only where `{on}` is {shown}, which it never is")


def _contains(domain: Domain, value: ParamValue) -> bool:
    # fixed for this study alone: what hangs on another value is left out of it
    if isinstance(domain, Constant):
        return True
    if isinstance(domain, Choice):
        return value in domain.values
    if isinstance(value, str | None):
        return False
    whole = isinstance(domain, Uniform) or float(value).is_integer()
    return whole and domain.low <= value <= domain.high

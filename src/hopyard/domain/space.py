"""A search space: the parameters of a study and their domains. `searchers` implements the sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from hopyard.domain.run import ParamValue
from hopyard.domain.suggest import unknown_name_hints
from hopyard.errors import SpecError


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these values, with equal probability; a grid uses all of them. Never empty."""

    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True)
class Uniform:
    """A real number from low to high, both included.

    log: uniform in its logarithm (low > 0). step: rounded to the nearest multiple of step above low
    (quantised), after log. points: the number of values for a grid, evenly spaced (in the logarithm).
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number from low to high, both included. log, step, points: as in `Uniform`; without log and
    points, a grid uses every step."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A fixed value. A study passes it to its trials; searchers ignore it."""

    value: ParamValue


Domain = Choice | Uniform | Integer | Constant


@dataclass(frozen=True, slots=True)
class Condition:
    """The parameter exists only if `parameter` exists and has one of these values."""

    parameter: str
    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. conditions: all must hold. A parameter may depend only on parameters before it in
    `Space.parameters`."""

    name: str
    domain: Domain
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Space:
    parameters: tuple[Parameter, ...]

    def is_active(self, parameter: Parameter, chosen: Mapping[str, ParamValue]) -> bool:
        """Returns whether the parameter exists, for the values of the parameters before it."""
        return all(
            condition.parameter in chosen and chosen[condition.parameter] in condition.values
            for condition in parameter.conditions
        )


def check_space(space: Space, path: str = "space") -> None:
    """Raises SpecError, with the parameter's path and a fix, unless the space is valid.

    Every parameter must have a value, and may depend only on possible values of parameters before it.
    """
    if not space.parameters:
        raise SpecError(
            f"{path}: the space is empty",
            hints=("name at least one parameter, such as `lr: {log: [1e-4, 1e-1]}`",),
        )
    before: dict[str, Domain] = {}
    for parameter in space.parameters:
        parameter_path = f"{path}.{parameter.name}"
        if not parameter.name:
            raise SpecError(f"{path}: a parameter has no name")
        if parameter.name in before:
            raise SpecError(f"{parameter_path}: duplicate name")
        _check_domain(parameter.domain, parameter_path)
        for condition in parameter.conditions:
            _check_condition(condition, parameter.name, before, parameter_path)
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
    bounds = f"from {domain.low} to {domain.high}"
    if not (isfinite(domain.low) and isfinite(domain.high)):
        raise SpecError(f"{path}: the range {bounds} is not finite")
    if domain.low > domain.high:
        raise SpecError(f"{path}: the range {bounds} has no point", hints=("write the lower bound first",))
    if domain.log and domain.low <= 0:
        raise SpecError(
            f"{path}: the logarithm of {domain.low} does not exist",
            hints=("choose a lower bound above 0",),
        )
    if domain.step is not None and not (isfinite(domain.step) and domain.step > 0):
        raise SpecError(f"{path}: the step {domain.step} is not above 0", hints=("choose a step above 0",))
    if domain.points is not None and domain.points < 1:
        raise SpecError(f"{path}: {domain.points} points are too few", hints=("choose at least 1 point",))


def _check_condition(condition: Condition, name: str, before: Mapping[str, Domain], path: str) -> None:
    required = condition.parameter
    if required not in before:
        cause = "itself" if required == name else f"`{required}`, which is not defined before it"
        raise SpecError(
            f"{path}: depends on {cause}", hints=unknown_name_hints(required, before, subject="before it")
        )
    if not condition.values or not any(_contains(before[required], value) for value in condition.values):
        shown = ", ".join(str(value) for value in condition.values) or "nothing"
        raise SpecError(f"{path}: exists only if `{required}` is {shown}, which is impossible")


def _contains(domain: Domain, value: ParamValue) -> bool:
    # constant in this study alone: parameters that depend on other values do not exist in it
    if isinstance(domain, Constant):
        return True
    if isinstance(domain, Choice):
        return value in domain.values
    if isinstance(value, str | None):
        return False
    is_possible = isinstance(domain, Uniform) or float(value).is_integer()
    return is_possible and domain.low <= value <= domain.high

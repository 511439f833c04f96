"""A search space: the parameters of a study and their domains. `searchers` implements the sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def contains(domain: Domain, value: ParamValue) -> bool:
    """Returns whether the value is one of the domain. A whole number is a real number as well."""
    if isinstance(domain, (Choice, Constant)):
        values = domain.values if isinstance(domain, Choice) else (domain.value,)
        return any(value == each and type(value) is type(each) for each in values)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(domain, Uniform):
        return domain.low <= value <= domain.high
    is_step = isinstance(value, int) and (domain.log or (value - domain.low) % domain.step == 0)
    return is_step and domain.low <= value <= domain.high


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


def count_combinations(space: Space, limit: int) -> int | None:
    """Returns how many combinations of values the space has; None if there are more than `limit`, or if a
    parameter has a range that a grid would not try in full."""
    combinations: list[dict[str, ParamValue]] = [{}]
    for parameter in space.parameters:
        values = _finite_values(parameter.domain)
        if values is None or len(values) > limit:
            return None
        combinations = [
            {**chosen, parameter.name: value} if is_active else chosen
            for chosen in combinations
            for is_active in [space.is_active(parameter, chosen)]
            for value in (values if is_active else values[:1])
        ]
        if len(combinations) > limit:
            return None
    return len(combinations)


def _finite_values(domain: Domain) -> Sequence[ParamValue] | None:
    match domain:
        case Constant(value):
            return (value,)
        case Choice(values):
            return values
        case Integer(low, high, log=False, step=step, points=None):
            return range(low, high + 1, step)
    return None


def check_space(space: Space, path: str = "space", *, is_stored: bool = False) -> None:
    """Raises SpecError, with the parameter's path and a fix, unless the space is valid.

    Every parameter must have a value, and may depend only on possible values of parameters before it.
    is_stored: of a study that was submitted before; see `check_domain`.
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
        check_domain(parameter.domain, parameter_path, is_stored=is_stored)
        for condition in parameter.conditions:
            _check_condition(condition, parameter.name, before, parameter_path)
        before[parameter.name] = parameter.domain


def check_domain(domain: Domain, path: str, *, is_stored: bool = False) -> None:
    """Raises SpecError, with the path and a fix, unless the domain has a value, and no value twice.

    is_stored: requires only what a searcher needs. Earlier versions accepted equal choices and odd steps, and
    their studies must still resume.
    """
    match domain:
        case Constant(value):
            if not is_stored:
                _check_finite(value, path)
        case Choice(values):
            _check_choices(values, path)
            if not is_stored:
                _check_distinct(values, path)
        case Uniform() | Integer():
            _check_range(domain, path)
            if not is_stored:
                _check_step(domain, path)


def _check_choices(values: Sequence[ParamValue], path: str) -> None:
    if not values:
        raise SpecError(
            f"{path}: there is nothing to choose from: the list is empty",
            hints=("give at least one value, or leave the parameter out",),
        )
    for index, value in enumerate(values):
        _check_finite(value, f"{path}.{index}")


def _check_distinct(values: Sequence[ParamValue], path: str) -> None:
    first_index: dict[ParamValue, int] = {}
    for index, value in enumerate(values):
        first = first_index.setdefault(value, index)
        if first != index:
            raise SpecError(
                f"{path}.{index}: {_quoted(value)} is given twice: it is the same as value {first}, "
                f"{_quoted(values[first])}",
                hints=("give each value once (1, 1.0 and true are the same value)",),
            )


def _check_range(domain: Uniform | Integer, path: str) -> None:
    low, high, step = domain.low, domain.high, domain.step
    _check_finite(low, path)
    _check_finite(high, path)
    if low > high:
        raise SpecError(
            f"{path}: low {_quoted(low)} is larger than high {_quoted(high)}: there is no point between them",
            hints=(f"did you mean {high:.15g} to {low:.15g}?",),
        )
    if domain.log and low <= 0:
        raise SpecError(
            f"{path}: low {low:.15g} has no logarithm",
            hints=("choose a lower bound above 0: loguniform(1e-6, 1e-1)", "or leave out `log`"),
        )
    if step is not None and not (isfinite(step) and step > 0):
        raise SpecError(f"{path}: step: {_quoted(step)} is not above 0", hints=("choose a step above 0",))
    if domain.points is not None and domain.points < 1:
        raise SpecError(
            f"{path}: points: `{domain.points}` is not a whole number from 1",
            hints=("how many values a grid takes of the range",),
        )


def _check_step(domain: Uniform | Integer, path: str) -> None:
    low, high, step = domain.low, domain.high, domain.step
    if not isfinite(float(high) - float(low)):
        raise SpecError(f"{path}: from {_quoted(low)} to {_quoted(high)} is wider than a number can tell")
    width = high - low if isinstance(domain, Uniform) else max(1, high - low)
    if step is not None and not (0 < step <= width * (1 + _ROUNDING) or (step > 0 and low == high)):
        raise SpecError(
            f"{path}: step: {_quoted(step)} is not above 0 and at most {width:g}, the width of the range"
        )
    if step is not None and low + step == low:
        raise SpecError(
            f"{path}: step: {_quoted(step)} is too small beside {_quoted(low)}: adding it changes nothing",
            hints=("leave out the step",),
        )


_ROUNDING = 1e-9  # of a width such as 1.2 - 0.9, which is not quite 0.3


def _check_finite(value: ParamValue, path: str) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise SpecError(f"{path}: `{value}` is not a finite number", hints=('in quotes it is a text: "inf"',))


def _quoted(value: ParamValue) -> str:
    match value:
        case None:
            return "`null`"
        case bool():
            return "`true`" if value else "`false`"
        case float():
            return f"`{value:.15g}`"
    return f"`{value}`"


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

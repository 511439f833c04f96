"""A search space: the parameters of a study, and from where each takes its values. Sampling is `search.draw`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hopyard.domain.run import ParamValue


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these, each as likely; in a grid, all of them. Never empty."""

    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True)
class Uniform:
    """A real number from low to high, both included. log: uniform in its logarithm (low > 0). step: rounded to the nearest
    multiple of step above low (quantised), after log. points: how many values a grid takes of it, evenly (in the logarithm)."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number from low to high, both included. log, step, points: as of `Uniform`."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    value: ParamValue


Domain = Choice | Uniform | Integer | Constant


@dataclass(frozen=True, slots=True)
class Condition:
    """The parameter exists only where `parameter` exists and has one of these values."""

    parameter: str
    values: tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """conditions: all must hold. A parameter may depend only on others that stand before it in `Space.parameters`."""

    name: str
    domain: Domain
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Space:
    parameters: tuple[Parameter, ...]

    def active(self, parameter: Parameter, chosen: Mapping[str, ParamValue]) -> bool:
        """Whether it exists where these were chosen of those before it."""
        return all(c.parameter in chosen and chosen[c.parameter] in c.values for c in parameter.conditions)

"""The domains of a search space, made of checked numbers and values.
`where` is the path that an error names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hopyard.config.limits import MAX_CHOICES
from hopyard.config.yaml_section import format_given
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Domain, Integer, Uniform, check_domain
from hopyard.errors import SpecError

_MAX_INTEGER = 2**63


def range_error(path: str, problem: str, *hints: str) -> SpecError:
    return SpecError(f"{path}: {problem}", hints=hints)


def uniform_range(
    path: str, low: Any, high: Any, *, log: Any = False, step: Any = None, points: Any = None
) -> Domain:
    """Returns the range as `Uniform` has it. A range of one number is a constant. Raises SpecError."""
    domain = Uniform(
        _check_finite(path, "low", low),
        _check_finite(path, "high", high),
        _check_log(path, log),
        None if step is None else _check_finite(path, "step", step),
        _check_points(path, points),
    )
    check_domain(domain, path)
    return Constant(domain.low) if domain.low == domain.high else domain


def integer_range(
    path: str, low: Any, high: Any, *, log: Any = False, step: Any = 1, points: Any = None
) -> Domain:
    """Returns the range as `Integer` has it. A range of one number is a constant. Raises SpecError."""
    domain = Integer(
        _check_integer(path, "low", low),
        _check_integer(path, "high", high),
        _check_log(path, log),
        1 if step is None else _check_integer(path, "step", step),
        _check_points(path, points),
    )
    check_domain(domain, path)
    return Constant(domain.low) if domain.low == domain.high else domain


def choice_of(path: str, choices: Any) -> Choice:
    """Raises SpecError for an empty list, a repeated value, and a value that no parameter may have."""
    if isinstance(choices, (str, bytes)) or not isinstance(choices, Sequence):
        raise range_error(
            path, f"{format_given(choices)} is not a list of values", "for example [16, 32, 64]"
        )
    choice = Choice(tuple(check_value(f"{path}.{index}", value) for index, value in enumerate(choices)))
    check_domain(choice, path)
    return choice


def check_value(path: str, value: Any) -> ParamValue:
    """Returns a value that a parameter may have. Raises SpecError."""
    value = to_plain_value(value)
    if isinstance(value, (list, tuple, dict)):
        raise range_error(
            path,
            f"{format_given(value)} is not a single value",
            'a parameter is a text, a number, true, false or null: "64,64" may stand for [64, 64]',
        )
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise range_error(
            path,
            f"{format_given(value)} is not a value that a parameter can have",
            "a text, a number, true, false or null",
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise range_error(
            path, f"{format_given(value)} is not a finite number", 'in quotes it is a text: "inf"'
        )
    if isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
        raise range_error(path, f"{format_given(value)} is larger than 64 bits", "in quotes it is a text")
    return value


def to_plain_value(value: Any) -> Any:
    """Converts NumPy's and similar values to Python's own numbers and lists; other values pass unchanged."""
    return (
        value.tolist()
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist")
        else value
    )


def equal_values(values: Iterable[ParamValue], value: Any) -> list[ParamValue]:
    """Returns the values that equal `value` in a space, where `1`, `1.0` and `true` are equal."""
    return [candidate for candidate in values if candidate == value]


def _check_finite(path: str, what: str, value: Any) -> float:
    value = to_plain_value(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise range_error(
            path, f"{what}: {format_given(value)} is not a number", "for example uniform(0.0, 1.0)"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise range_error(path, f"{what}: {format_given(value)} is not a finite number")
    return number


def _check_integer(path: str, what: str, value: Any) -> int:
    number = _check_finite(path, what, value)
    if number != math.floor(number):
        raise range_error(
            path,
            f"{what}: {format_given(value)} is not a whole number",
            "for real numbers write uniform(low, high)",
        )
    exact = int(to_plain_value(value))
    if not -_MAX_INTEGER <= exact < _MAX_INTEGER:
        raise range_error(path, f"{what}: {format_given(value)} is larger than 64 bits")
    return exact


def _check_log(path: str, log: Any) -> bool:
    if not isinstance(log, bool):
        raise range_error(
            path, f"log: {format_given(log)} is neither true nor false", "write true or false, without quotes"
        )
    return log


def _check_points(path: str, points: Any) -> int | None:
    if points is None:
        return None
    if isinstance(points, bool) or not isinstance(points, int) or not 1 <= points <= MAX_CHOICES:
        raise range_error(
            path,
            f"points: {format_given(points)} is not a whole number from 1 to {MAX_CHOICES}",
            "how many values a grid takes of the range",
        )
    return points

"""The domains of a search space, made of checked numbers and values.
`where` is the path that an error names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hopyard.config.reader import shown
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Domain, Integer, Uniform
from hopyard.errors import SpecError

MAX_POINTS = 1_000_000
_MOST = 2**63


def bad(where: str, problem: str, *hints: str) -> SpecError:
    return SpecError(f"{where}: {problem}", hints=hints)


def real(
    where: str, low: Any, high: Any, *, log: Any = False, step: Any = None, points: Any = None
) -> Domain:
    """As of `Uniform`; one number alone is a constant. Raises SpecError."""
    bottom, top = _finite(where, "low", low), _finite(where, "high", high)
    _check_order(where, bottom, top, low, high)
    logarithmic = _check_log(where, log, bottom)
    quantum = None if step is None else _finite(where, "step", step)
    if quantum is not None and (quantum <= 0 or quantum > top - bottom > 0):
        raise _bad_step(where, step, top - bottom)
    if quantum is not None and bottom + quantum == bottom:
        raise bad(
            where,
            f"step: {shown(step)} is too small beside {shown(low)}: adding it changes nothing",
            "leave out the step",
        )
    if bottom == top:
        return Constant(bottom)
    return Uniform(bottom, top, logarithmic, quantum, _points(where, points))


def whole(where: str, low: Any, high: Any, *, log: Any = False, step: Any = 1, points: Any = None) -> Domain:
    """As of `Integer`; one number alone is a constant. Raises SpecError."""
    bottom, top = _integer(where, "low", low), _integer(where, "high", high)
    _check_order(where, bottom, top, low, high)
    logarithmic = _check_log(where, log, bottom)
    stride = 1 if step is None else _integer(where, "step", step)
    if stride < 1 or stride > max(1, top - bottom):
        raise _bad_step(where, step, top - bottom)
    if bottom == top:
        return Constant(bottom)
    return Integer(bottom, top, logarithmic, stride, _points(where, points))


def choice(where: str, choices: Any) -> Choice:
    """Raises SpecError for an empty one, for a value that stands twice, and for one that is no single
    value."""
    if isinstance(choices, (str, bytes)) or not isinstance(choices, Sequence):
        raise bad(where, f"{shown(choices)} is not a list of values", "for example [16, 32, 64]")
    if not choices:
        raise bad(
            where,
            "there is nothing to choose from: the list is empty",
            "give at least one value, or leave the parameter out",
        )
    found: list[ParamValue] = []
    for at, value in enumerate(choices):
        one = single(f"{where}.{at}", value)
        for before, other in enumerate(found):
            if one == other:
                raise bad(
                    f"{where}.{at}",
                    f"{shown(value)} stands there twice: it is the same as value {before}, {shown(other)}",
                    _TWICE,
                )
        found.append(one)
    return Choice(tuple(found))


_TWICE = "every value once: each is as likely as any other (1, 1.0 and true are the same value)"


def single(where: str, value: Any) -> ParamValue:
    """A value that a parameter may have. Raises SpecError."""
    value = plain(value)
    if isinstance(value, (list, tuple, dict)):
        raise bad(
            where,
            f"{shown(value)} is not a single value",
            'a parameter is a text, a number, true, false or null: "64,64" may stand for [64, 64]',
        )
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise bad(
            where,
            f"{shown(value)} is not a value that a parameter can have",
            "a text, a number, true, false or null",
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise bad(where, f"{shown(value)} is not a finite number", 'in quotes it is a text: "inf"')
    if isinstance(value, int) and not -_MOST <= value < _MOST:
        raise bad(where, f"{shown(value)} is larger than 64 bits", "in quotes it is a text")
    return value


def plain(value: Any) -> Any:
    """NumPy's and the like as Python's own numbers and lists; all else as it is."""
    return (
        value.tolist()
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist")
        else value
    )


def equal(values: Iterable[ParamValue], value: Any) -> list[ParamValue]:
    """Those of `values` that are the same as `value` in a space, where `1`, `1.0` and `true` are."""
    return [one for one in values if one == value]


def _finite(where: str, what: str, value: Any) -> float:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad(where, f"{what}: {shown(value)} is not a number", "for example uniform(0.0, 1.0)")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise bad(where, f"{what}: {shown(value)} is not a finite number")
    return number


def _integer(where: str, what: str, value: Any) -> int:
    number = _finite(where, what, value)
    if number != math.floor(number):
        raise bad(
            where,
            f"{what}: {shown(value)} is not a whole number",
            "for real numbers write uniform(low, high)",
        )
    exact = int(plain(value))
    if not -_MOST <= exact < _MOST:
        raise bad(where, f"{what}: {shown(value)} is larger than 64 bits")
    return exact


def _check_order(where: str, bottom: float, top: float, low: Any, high: Any) -> None:
    if bottom > top:
        raise bad(
            where,
            f"low {shown(low)} is larger than high {shown(high)}: there is no point between them",
            f"did you mean {high} to {low}?",
        )
    if not math.isfinite(float(top) - float(bottom)):
        raise bad(where, f"from {shown(low)} to {shown(high)} is wider than a number can tell")


def _check_log(where: str, log: Any, bottom: float) -> bool:
    if not isinstance(log, bool):
        raise bad(
            where, f"log: {shown(log)} is neither true nor false", "write true or false, without quotes"
        )
    if log and bottom <= 0:
        raise bad(
            where,
            f"low {bottom:g} has no logarithm",
            "a logarithmic range begins above 0: loguniform(1e-6, 1e-1)",
            "or leave out `log`",
        )
    return log


def _bad_step(where: str, step: Any, width: float) -> SpecError:
    return bad(where, f"step: {shown(step)} is not above 0 and at most {width:g}, the width of the range")


def _points(where: str, points: Any) -> int | None:
    if points is None:
        return None
    if isinstance(points, bool) or not isinstance(points, int) or not 1 <= points <= MAX_POINTS:
        raise bad(
            where,
            f"points: {shown(points)} is not a whole number from 1 to {MAX_POINTS}",
            "how many values a grid takes of the range",
        )
    return points

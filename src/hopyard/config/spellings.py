"""How the range of a parameter may be spelled: our words, Optuna's and Ray Tune's, each as a call with
arguments.

A text `loguniform(1e-4, 1e-1)`, a mapping `{suggest_float: [1e-4, 1e-1], log: true}` and an object of either
library become the same call, so that there is one table of names and one place that checks arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hopyard.config import ranges
from hopyard.config.ranges import bad
from hopyard.config.reader import shown
from hopyard.config.suggest import closest, hints_for
from hopyard.domain.space import Constant, Domain

_ALIASES = {
    "lower": "low",
    "min": "low",
    "upper": "high",
    "max": "high",
    "q": "step",
    "categories": "choices",
    "values": "choices",
    "const": "value",
}
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Spelling:
    """order: the arguments, in the order in which they may be given without their names.
    needed: those that must be there."""

    order: tuple[str, ...]
    needed: tuple[str, ...]
    make: Callable[..., Domain]


def domain_of_call(where: str, name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> Domain:
    """Raises SpecError for a name that nobody has, an argument too many, too few, or of the wrong kind."""
    spelling = SPELLINGS.get(name)
    if spelling is None:
        raise unknown(where, name)
    arguments = _bound(where, name, spelling, positional, named)
    return spelling.make(where, **arguments)


def unknown(where: str, name: str) -> Exception:
    if name in UNBOUNDED:
        return bad(
            where, f"`{name}` has no bounds, and a space has them", "for example loguniform(1e-5, 1e-1)"
        )
    if name == "sample_from":
        return bad(
            where,
            "`sample_from` holds code, and a space holds none",
            "a parameter that depends on another is written with `when`",
        )
    near = closest(name, SPELLINGS)
    hints = (f"did you mean `{near}`?",) if near else ()
    return bad(
        where,
        f"there is no range `{name}`",
        *hints,
        f"ranges: {', '.join(MAIN)}",
        'a text as it stands is written {value: "…"}',
    )


def _bound(
    where: str, name: str, spelling: Spelling, positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    if len(positional) > len(spelling.order):
        raise bad(
            where,
            f"`{name}` takes at most {len(spelling.order)} values, {len(positional)} are given",
            f"write {_usage(name, spelling)}",
        )
    found: dict[str, Any] = dict(zip(spelling.order, positional, strict=False))
    for key, value in named.items():
        argument = _ALIASES.get(key, key)
        if argument not in spelling.order:
            raise bad(where, f"`{name}` has no `{key}`", *hints_for(key, spelling.order))
        if argument in found:
            raise bad(where, f"`{argument}` is given twice", f"write {_usage(name, spelling)}")
        found[argument] = value
    for argument in spelling.needed:
        if found.get(argument, _MISSING) is _MISSING:
            raise bad(where, f"`{name}` lacks `{argument}`", f"write {_usage(name, spelling)}")
    return found


def _usage(name: str, spelling: Spelling) -> str:
    if spelling.order == ("choices",):
        return f"{name}([16, 32, 64])"
    return f"{name}({', '.join(spelling.needed)})"


# any base gives the same
def _loguniform(where: str, low: Any, high: Any, base: Any = 10, points: Any = None) -> Domain:  # noqa: ARG001
    return ranges.real(where, low, high, log=True, points=points)


def _quniform(where: str, low: Any, high: Any, step: Any) -> Domain:
    return ranges.real(where, _multiple(where, low, step), high, step=step)


def _qloguniform(where: str, low: Any, high: Any, step: Any, base: Any = 10) -> Domain:  # noqa: ARG001
    return ranges.real(where, _multiple(where, low, step), high, log=True, step=step)


def _randint(where: str, low: Any, high: Any) -> Domain:
    return ranges.whole(where, low, _below(where, low, high))


def _lograndint(where: str, low: Any, high: Any, base: Any = 10) -> Domain:  # noqa: ARG001
    return ranges.whole(where, low, _below(where, low, high), log=True)


def _qrandint(where: str, low: Any, high: Any, step: Any = 1) -> Domain:
    return ranges.whole(where, _multiple(where, low, step), high, step=step)


def _qlograndint(where: str, low: Any, high: Any, step: Any, base: Any = 10) -> Domain:  # noqa: ARG001
    return ranges.whole(where, _multiple(where, low, step), high, step=step, log=True)


def _multiple(where: str, low: Any, step: Any) -> Any:
    """Ray Tune's quantised ranges are multiples of the step; ours begin at `low`: both are the same where
    `low` is one."""
    numbers = all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in (low, step))
    if (
        numbers
        and step > 0
        and math.isfinite(low)
        and not math.isclose(low / step, round(low / step), abs_tol=1e-9)
    ):
        raise bad(
            where,
            f"low: {shown(low)} is not a multiple of {shown(step)}",
            f"begin at {math.floor(low / step) * step:g} or {math.ceil(low / step) * step:g}",
        )
    return low


def _below(where: str, low: Any, high: Any) -> Any:
    """Ray Tune leaves the upper end of whole numbers out."""
    if isinstance(low, int) and isinstance(high, int) and high == low:
        raise bad(
            where,
            f"there is no whole number from {low} to below {high}",
            "the upper end of Ray Tune's randint is left out; int(low, high) has it",
        )
    return high - 1 if isinstance(high, int) and not isinstance(high, bool) else high


def _constant(where: str, value: Any) -> Domain:
    return Constant(ranges.single(where, value))


_REAL = Spelling(("low", "high", "log", "step", "points"), ("low", "high"), ranges.real)
_WHOLE = Spelling(("low", "high", "log", "step", "points"), ("low", "high"), ranges.whole)
_ANY_OF = Spelling(("choices",), ("choices",), ranges.choice)
_LOG = Spelling(("low", "high", "base", "points"), ("low", "high"), _loguniform)
_QUANTISED = (("low", "high", "step"), ("low", "high", "step"))

SPELLINGS: Mapping[str, Spelling] = {
    **dict.fromkeys(
        (
            "uniform",
            "float",
            "real",
            "suggest_float",
            "suggest_uniform",
            "FloatDistribution",
            "UniformDistribution",
        ),
        _REAL,
    ),
    **dict.fromkeys(("loguniform", "suggest_loguniform", "LogUniformDistribution"), _LOG),
    **dict.fromkeys(("int", "integer", "IntDistribution"), _WHOLE),
    **dict.fromkeys(
        ("suggest_int", "IntUniformDistribution"),
        Spelling(("low", "high", "step", "log", "points"), ("low", "high"), ranges.whole),
    ),
    **dict.fromkeys(
        ("suggest_discrete_uniform", "DiscreteUniformDistribution"), Spelling(*_QUANTISED, ranges.real)
    ),
    "IntLogUniformDistribution": Spelling(
        ("low", "high", "step"), ("low", "high"), partial(ranges.whole, log=True)
    ),
    "quniform": Spelling(*_QUANTISED, _quniform),
    "qloguniform": Spelling(("low", "high", "step", "base"), ("low", "high", "step"), _qloguniform),
    "randint": Spelling(("low", "high"), ("low", "high"), _randint),
    "lograndint": Spelling(("low", "high", "base"), ("low", "high"), _lograndint),
    "qrandint": Spelling(("low", "high", "step"), ("low", "high"), _qrandint),
    "qlograndint": Spelling(("low", "high", "step", "base"), ("low", "high", "step"), _qlograndint),
    **dict.fromkeys(
        ("choice", "categorical", "suggest_categorical", "CategoricalDistribution", "grid_search"), _ANY_OF
    ),
    **dict.fromkeys(("value", "constant"), Spelling(("value",), ("value",), _constant)),
}
MAIN = (
    "choice",
    "uniform",
    "loguniform",
    "int",
    "value",
    "suggest_float",
    "suggest_int",
    "randint",
    "quniform",
    "qloguniform",
    "grid_search",
)
UNBOUNDED = frozenset({"randn", "qrandn", "normal", "lognormal", "qnormal", "qlognormal"})

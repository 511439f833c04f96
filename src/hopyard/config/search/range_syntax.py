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

from hopyard.config.search import range_checks
from hopyard.config.search.range_checks import range_error
from hopyard.config.suggest import closest_name, unknown_name_hints
from hopyard.config.yaml_section import format_given
from hopyard.domain.space import Constant, Domain

_ALIASES = {
    "lower": "low",
    "min": "low",
    "minval": "low",
    "maxval": "high",
    "upper": "high",
    "max": "high",
    "q": "step",
    "categories": "choices",
    "values": "choices",
    "const": "value",
}
_MISSING = object()


@dataclass(frozen=True, slots=True)
class RangeForm:
    """order: the arguments, in the order in which they may be given without names. required: arguments
    without a default."""

    order: tuple[str, ...]
    required: tuple[str, ...]
    build: Callable[..., Domain]


def domain_from_call(path: str, name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> Domain:
    """Raises SpecError for an unknown name, a missing or surplus argument, and a value of the wrong kind."""
    spelling = RANGE_FORMS.get(name)
    if spelling is None:
        raise unknown_form_error(path, name)
    arguments = _bind_arguments(path, name, spelling, positional, named)
    return spelling.build(path, **arguments)


def unknown_form_error(path: str, name: str) -> Exception:
    if name in UNBOUNDED_FORMS:
        return range_error(
            path, f"`{name}` has no bounds, and a space has them", "for example loguniform(1e-5, 1e-1)"
        )
    if name == "sample_from":
        return range_error(
            path,
            "`sample_from` holds code, and a space holds none",
            "a parameter that depends on another is written with `when`",
        )
    closest = closest_name(name, RANGE_FORMS)
    hints = (f"did you mean `{closest}`?",) if closest else ()
    return range_error(
        path,
        f"there is no range `{name}`",
        *hints,
        f"ranges: {', '.join(MAIN_FORMS)}",
        'a text as it stands is written {value: "…"}',
    )


def _bind_arguments(
    path: str, name: str, spelling: RangeForm, positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    if len(positional) > len(spelling.order):
        raise range_error(
            path,
            f"`{name}` takes at most {len(spelling.order)} values, {len(positional)} are given",
            f"write {_usage_text(name, spelling)}",
        )
    arguments: dict[str, Any] = dict(zip(spelling.order, positional, strict=False))
    for key, value in named.items():
        argument = _ALIASES.get(key, key)
        if argument not in spelling.order:
            raise range_error(path, f"`{name}` has no `{key}`", *unknown_name_hints(key, spelling.order))
        if argument in arguments:
            raise range_error(path, f"`{argument}` is given twice", f"write {_usage_text(name, spelling)}")
        arguments[argument] = value
    for argument in spelling.required:
        if arguments.get(argument, _MISSING) is _MISSING:
            raise range_error(path, f"`{name}` lacks `{argument}`", f"write {_usage_text(name, spelling)}")
    return arguments


def _usage_text(name: str, spelling: RangeForm) -> str:
    if spelling.order == ("choices",):
        return f"{name}([16, 32, 64])"
    return f"{name}({', '.join(spelling.required)})"


# any base gives the same
def _loguniform(path: str, low: Any, high: Any, base: Any = 10, points: Any = None) -> Domain:  # noqa: ARG001
    return range_checks.uniform_range(path, low, high, log=True, points=points)


def _quniform(path: str, low: Any, high: Any, step: Any) -> Domain:
    return range_checks.uniform_range(path, _check_multiple(path, low, step), high, step=step)


def _qloguniform(path: str, low: Any, high: Any, step: Any, base: Any = 10) -> Domain:  # noqa: ARG001
    return range_checks.uniform_range(path, _check_multiple(path, low, step), high, log=True, step=step)


def _randint(path: str, low: Any, high: Any) -> Domain:
    return range_checks.integer_range(path, low, _exclusive_upper(path, low, high))


def _lograndint(path: str, low: Any, high: Any, base: Any = 10) -> Domain:  # noqa: ARG001
    return range_checks.integer_range(path, low, _exclusive_upper(path, low, high), log=True)


def _qrandint(path: str, low: Any, high: Any, step: Any = 1) -> Domain:
    return range_checks.integer_range(path, _check_multiple(path, low, step), high, step=step)


def _qlograndint(path: str, low: Any, high: Any, step: Any, base: Any = 10) -> Domain:  # noqa: ARG001
    return range_checks.integer_range(path, _check_multiple(path, low, step), high, step=step, log=True)


def _check_multiple(path: str, low: Any, step: Any) -> Any:
    """Ray Tune's quantised ranges are multiples of the step; ours begin at `low`: both are the same where
    `low` is one."""
    numbers = all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in (low, step))
    if (
        numbers
        and step > 0
        and math.isfinite(low)
        and not math.isclose(low / step, round(low / step), abs_tol=1e-9)
    ):
        raise range_error(
            path,
            f"low: {format_given(low)} is not a multiple of {format_given(step)}",
            f"begin at {math.floor(low / step) * step:g} or {math.ceil(low / step) * step:g}",
        )
    return low


def _exclusive_upper(path: str, low: Any, high: Any) -> Any:
    """Ray Tune leaves the upper end of whole numbers out."""
    if isinstance(low, int) and isinstance(high, int) and high == low:
        raise range_error(
            path,
            f"there is no whole number from {low} to below {high}",
            "the upper end of Ray Tune's randint is left out; int(low, high) has it",
        )
    return high - 1 if isinstance(high, int) and not isinstance(high, bool) else high


def _constant(path: str, value: Any) -> Domain:
    return Constant(range_checks.check_value(path, value))


_REAL_FORM = RangeForm(("low", "high", "log", "step", "points"), ("low", "high"), range_checks.uniform_range)
_INTEGER_FORM = RangeForm(
    ("low", "high", "log", "step", "points"), ("low", "high"), range_checks.integer_range
)
_CHOICE_FORM = RangeForm(("choices",), ("choices",), range_checks.choice_of)
_LOG_FORM = RangeForm(("low", "high", "base", "points"), ("low", "high"), _loguniform)
_QUANTISED_ORDER = (("low", "high", "step"), ("low", "high", "step"))

RANGE_FORMS: Mapping[str, RangeForm] = {
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
        _REAL_FORM,
    ),
    **dict.fromkeys(("loguniform", "suggest_loguniform", "LogUniformDistribution"), _LOG_FORM),
    **dict.fromkeys(("int", "integer", "IntDistribution"), _INTEGER_FORM),
    **dict.fromkeys(
        ("suggest_int", "IntUniformDistribution"),
        RangeForm(("low", "high", "step", "log", "points"), ("low", "high"), range_checks.integer_range),
    ),
    **dict.fromkeys(
        ("suggest_discrete_uniform", "DiscreteUniformDistribution"),
        RangeForm(*_QUANTISED_ORDER, range_checks.uniform_range),
    ),
    "IntLogUniformDistribution": RangeForm(
        ("low", "high", "step"), ("low", "high"), partial(range_checks.integer_range, log=True)
    ),
    "quniform": RangeForm(*_QUANTISED_ORDER, _quniform),
    "qloguniform": RangeForm(("low", "high", "step", "base"), ("low", "high", "step"), _qloguniform),
    "randint": RangeForm(("low", "high"), ("low", "high"), _randint),
    "lograndint": RangeForm(("low", "high", "base"), ("low", "high"), _lograndint),
    "qrandint": RangeForm(("low", "high", "step"), ("low", "high"), _qrandint),
    "qlograndint": RangeForm(("low", "high", "step", "base"), ("low", "high", "step"), _qlograndint),
    **dict.fromkeys(
        ("choice", "categorical", "suggest_categorical", "CategoricalDistribution", "grid_search"),
        _CHOICE_FORM,
    ),
    **dict.fromkeys(("value", "constant"), RangeForm(("value",), ("value",), _constant)),
}
MAIN_FORMS = (
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
UNBOUNDED_FORMS = frozenset({"randn", "qrandn", "normal", "lognormal", "qnormal", "qlognormal"})

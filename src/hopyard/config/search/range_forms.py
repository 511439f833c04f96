"""Parses the range of one parameter: a text, a list, a mapping, or an object of Optuna or Ray Tune. Nothing
is evaluated: a text is parsed as a call whose arguments are literals."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.config.search import range_checks
from hopyard.config.search.range_checks import range_error, to_plain_value
from hopyard.config.search.range_syntax import RANGE_FORMS, domain_from_call, unknown_form_error
from hopyard.config.suggest import closest_name, unknown_name_hints
from hopyard.config.yaml_section import format_given
from hopyard.domain.space import Choice, Constant, Domain, Integer, Uniform
from hopyard.errors import SpecError

_CALL = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*\s*\(", re.ASCII)
_NUMBER_TEXT = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_RANGE_TEXT = re.compile(rf"{_NUMBER_TEXT}\s*(?:\.\.\.?|:|-|–|to)\s*{_NUMBER_TEXT}")
# libraries with the same functions as here; `trial.suggest_…` may have any variable in front
_PREFIXES = frozenset({"", "tune", "ray.tune", "optuna.distributions", "distributions"})
_DISTRIBUTIONS = {
    "uniform": "float",
    "q_uniform": "quniform",
    "log_uniform_values": "loguniform",
    "q_log_uniform_values": "qloguniform",
    "int_uniform": "int",
}
_LOG_OF_HYPEROPT = frozenset({"loguniform", "qloguniform"})
_WORD_VALUES = {"true": True, "false": False, "null": None, "none": None}
_MAX_TEXT = 100_000
_FLAT_KEYS = ("low", "high", "lower", "upper", "min", "max", "minval", "maxval")
_OPTION_KEYS = ("type", "log", "step", "q", "points", "values", "when")
_EXAMPLES = (
    (
        "ranges: [16, 32, 64], uniform(0, 1), loguniform(1e-5, 1e-1), int(1, 8), {low: 0.0, high: 1.0, "
        "step: 0.1}"
    ),
)


def read_domain(value: Any, path: str) -> Domain:
    """Returns the domain that `value` spells. Raises SpecError naming `path`."""
    value = to_plain_value(value)
    if isinstance(value, str):
        return _domain_from_text(value, path)
    if isinstance(value, Mapping):
        return _domain_from_mapping(value, path)
    if isinstance(value, (list, tuple)):
        return range_checks.choice_of(path, value)
    if isinstance(value, range):
        if not value:
            raise range_error(path, f"{value} holds no number")
        first, last = sorted((value[0], value[-1]))
        return range_checks.integer_range(path, first, last, step=min(abs(value.step), max(1, last - first)))
    if value is None or isinstance(value, (int, float)):
        return Constant(range_checks.check_value(path, value))
    return _domain_from_object(value, path)


def _domain_from_text(text: str, path: str) -> Domain:
    if len(text) > _MAX_TEXT:
        raise range_error(
            path,
            f"a text of {len(text)} characters is no range",
            "long lists of values are written as a list",
        )
    stripped = text.strip()
    if (ends := _RANGE_TEXT.fullmatch(stripped)) is not None:
        hint = (
            f"write uniform({ends[1]}, {ends[2]}), loguniform({ends[1]}, {ends[2]}) or int({ends[1]}, "
            f"{ends[2]})"
        )
        raise range_error(
            path,
            f"{format_given(text)} is a text, and looks like a range",
            hint,
            'a text as it stands is written {value: "…"}',
        )
    if not _CALL.search(stripped):
        return Constant(text)
    prefix, _, name = stripped[: stripped.index("(")].strip().rpartition(".")
    if prefix not in _PREFIXES and not name.startswith("suggest_"):
        raise _foreign_prefix_error(path, prefix, name)
    if name not in RANGE_FORMS:
        raise unknown_form_error(path, name)
    positional, named = _call_arguments(stripped, path)
    numbers = [*positional, *named.values()]
    if name == "quniform" and all(type(number) is int for number in numbers):
        call = ", ".join(map(str, numbers))
        raise range_error(
            path,
            f"quniform({call}) gives real numbers such as {numbers[0]}.0" if numbers else "no ends are given",
            f"write qrandint({call}) for whole numbers",
            f"write quniform({', '.join(f'{number}.0' for number in numbers)}) for real numbers",
        )
    return domain_from_call(path, name, positional, named)


def _foreign_prefix_error(path: str, prefix: str, name: str) -> SpecError:
    """Functions of other libraries have other arguments: `hp.loguniform(1, 3)` is from e^1 to e^3."""
    hints = (
        [f"write {name}(…) without `{prefix}.`, with the ends of the range"] if name in RANGE_FORMS else []
    )
    if prefix in ("hp", "hyperopt.hp") and name in _LOG_OF_HYPEROPT:
        hints = ["hyperopt gives the logarithms of the ends: write loguniform(1e-4, 1e-1) with the ends"]
    return range_error(path, f"`{prefix}.{name}` is a function of another library", *hints, *_EXAMPLES)


def _call_arguments(text: str, path: str) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments in the brackets. The name of the parameter, which Optuna's suggest_… begin with,
    is left out."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        problem = getattr(error, "msg", None) or str(error)
        hints = (
            ()
            if ")" in text
            else ('between { } a text with a comma needs quotes: {lr: "loguniform(1e-5, 1e-1)"}',)
        )
        raise range_error(
            path,
            f"{format_given(text)} cannot be read: {problem}",
            *hints,
            "for example loguniform(1e-5, 1e-1)",
        ) from None
    if not isinstance(call, ast.Call):
        raise range_error(
            path, f"{format_given(text)} is more than one range", "for example loguniform(1e-5, 1e-1)"
        )
    positional = [_literal_value(node, path) for node in call.args]
    named = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise range_error(path, f"{format_given(text)} cannot be read: `**` stands in it")
        named[keyword.arg] = _literal_value(keyword.value, path)
    function = (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )
    if function.startswith("suggest_"):
        named.pop("name", None)
        if positional and isinstance(positional[0], str):
            positional = positional[1:]
    return positional, named


def _literal_value(node: ast.expr, path: str) -> Any:
    """Returns a literal; words without quotes are texts, as in YAML."""
    if isinstance(node, ast.Name):
        return _WORD_VALUES.get(node.id.lower(), node.id)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal_value(element, path) for element in node.elts]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise range_error(
            path,
            f"`{ast.unparse(node)[:60]}` is not a number, a text or a list",
            "nothing is computed here: write the number itself",
        ) from None


def _domain_from_mapping(mapping: Mapping[Any, Any], path: str) -> Domain:
    for key in mapping:
        if not isinstance(key, str):
            raise range_error(path, f"the key {format_given(key)} is not a text")
    # Optuna's JSON of a distribution
    if mapping.keys() == {"name", "attributes"} and isinstance(mapping["attributes"], Mapping):
        return domain_from_call(path, str(mapping["name"]), (), mapping["attributes"])
    if "distribution" in mapping:
        mapping = _from_distribution(mapping, path)
    heads = [key for key in mapping if key in RANGE_FORMS]
    if mapping.get("type") is not None:
        return _domain_by_type(mapping, heads, path)
    if len(heads) > 1:
        raise range_error(path, f"`{heads[0]}` and `{heads[1]}` stand in it: one parameter has one range")
    if heads:
        head, rest = heads[0], {key: value for key, value in mapping.items() if key != heads[0]}
        if head == "value" and not rest:
            return domain_from_call(path, head, (mapping[head],), {})
        return _domain_by_head(head, mapping[head], rest, path)
    if "values" in mapping:
        return domain_from_call(path, "choice", (), mapping)
    if any(key in mapping for key in _FLAT_KEYS):
        return domain_from_call(path, _domain_by_numbers(mapping, path), (), mapping)
    raise _not_a_range_error(mapping, path)


def _from_distribution(mapping: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Returns the range of a sweep of Weights & Biases: `{distribution: log_uniform_values, min: …, max: …}`
    in our words."""
    kind, rest = mapping["distribution"], {key: mapping[key] for key in mapping if key != "distribution"}
    if kind in ("categorical", "constant"):
        return rest
    if kind not in _DISTRIBUTIONS:
        hint = "write log_uniform_values with the ends themselves" if kind == "log_uniform" else ""
        raise range_error(
            f"{path}.distribution",
            f"there is no distribution {format_given(kind)}",
            *filter(None, [hint]),
            *unknown_name_hints(str(kind), _DISTRIBUTIONS),
        )
    return {**rest, "type": _DISTRIBUTIONS[kind]}


def _domain_by_type(mapping: Mapping[str, Any], heads: list[str], path: str) -> Domain:
    """`{type: float, low: 0.0, high: 1.0}`"""
    kind, rest = mapping["type"], {key: value for key, value in mapping.items() if key != "type"}
    other_heads = [head for head in heads if head != "value"]
    if kind == "log":
        raise range_error(
            f"{path}.type",
            "`log` of Determined has exponents as its ends",
            "write the ends: {type: float, log: true, low: 1.0e-4, high: 0.1}",
        )
    kind = "float" if kind == "double" else kind
    if not isinstance(kind, str) or kind not in RANGE_FORMS:
        raise range_error(
            f"{path}.type",
            f"there is no range {format_given(kind)}",
            *unknown_name_hints(str(kind), ("float", "int", "categorical", "loguniform")),
        )
    if other_heads:
        raise range_error(path, f"`type` and `{other_heads[0]}` stand in it: one parameter has one range")
    return domain_from_call(path, kind, (), rest)


def _domain_by_head(head: str, body: Any, rest: Mapping[str, Any], path: str) -> Domain:
    """`{uniform: [0, 1], step: 0.1}`, `{loguniform: {low: 1e-5, high: 1e-1}}`, `{choice: [a, b]}`"""
    body = to_plain_value(body)
    if RANGE_FORMS[head].order == ("choices",):
        return domain_from_call(path, head, (body,), rest)
    if isinstance(body, Mapping):
        twice = [key for key in rest if key in body]
        if twice:
            raise range_error(path, f"`{twice[0]}` is given twice")
        return domain_from_call(path, head, (), {**body, **rest})
    if not isinstance(body, Sequence) or isinstance(body, str):
        raise range_error(
            path, f"{head}: {format_given(body)} is not a list of two numbers", f"for example {head}: [1, 8]"
        )
    return domain_from_call(path, head, body, rest)


def _domain_by_numbers(mapping: Mapping[str, Any], path: str) -> str:
    """Returns the form of a range without a kind: real or whole numbers. Whole ends are ambiguous, and
    refused."""
    ends = [to_plain_value(mapping[key]) for key in mapping if key in _FLAT_KEYS or key in ("step", "q")]
    if any(isinstance(end, float) for end in ends):
        return "float"
    if all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
        raise range_error(
            path, "real or whole numbers? Both ends are whole", "say `type: float` or `type: int`"
        )
    return "float"


def _not_a_range_error(value: Mapping[str, Any], path: str) -> SpecError:
    for key in value:
        near = closest_name(key, (*RANGE_FORMS, *_FLAT_KEYS, *_OPTION_KEYS))
        if near:
            return range_error(path, f"there is no key `{key}`", f"did you mean `{near}`?", *_EXAMPLES)
    if not value:
        return range_error(path, "there is nothing to choose from: the mapping is empty", *_EXAMPLES)
    return range_error(
        path,
        f"no range stands in it, only {', '.join(f'`{key}`' for key in list(value)[:5])}",
        *_EXAMPLES,
        "parameters are not nested: write `optimizer.lr: loguniform(1e-5, 1e-1)` for lr of optimizer",
    )


def _domain_from_object(value: Any, path: str) -> Domain:
    if isinstance(value, (Choice, Uniform, Integer, Constant)):
        return _checked_domain(value, path)
    library, name = type(value).__module__.partition(".")[0], type(value).__name__
    if library == "optuna" and name in RANGE_FORMS:
        attributes = ("choices",) if name == "CategoricalDistribution" else ("low", "high", "log", "step")
        return domain_from_call(
            path, name, (), {key: getattr(value, key) for key in attributes if hasattr(value, key)}
        )
    if library == "ray":
        return _domain_from_ray(value, name, path)
    if callable(value):
        raise range_error(
            path,
            f"{format_given(value)} is code, and a space holds none",
            "a parameter that depends on another is written with `when`",
        )
    raise range_error(path, f"{format_given(value)} is no range", *_EXAMPLES)


def _domain_from_ray(value: Any, name: str, path: str) -> Domain:
    """Returns the domain of a sample object of Ray Tune. Its attributes tell its kind: lower, upper,
    categories, and sampler with base or q."""
    if name == "Categorical":
        return range_checks.choice_of(path, list(value.categories))
    sampler = getattr(value, "sampler", None)
    step = getattr(sampler, "q", None)
    inner = getattr(sampler, "sampler", sampler)  # a quantised sampler wraps another
    kind = type(inner).__name__.strip("_").lower()
    if name not in ("Float", "Integer") or kind not in ("uniform", "loguniform", "nonetype"):
        raise unknown_form_error(
            path, "sample_from" if name == "Function" else "randn" if kind == "normal" else name
        )
    spelled = {
        ("Float", False): "uniform",
        ("Float", True): "loguniform",
        ("Integer", False): "randint",
        ("Integer", True): "lograndint",
    }
    call = spelled[name, kind == "loguniform"]
    if step is None:
        return domain_from_call(path, call, (value.lower, value.upper), {})
    return domain_from_call(
        path, {"lograndint": "qlograndint"}.get(call, f"q{call}"), (value.lower, value.upper, step), {}
    )


def _checked_domain(value: Domain, path: str) -> Domain:
    if isinstance(value, Choice):
        return range_checks.choice_of(path, value.values)
    if isinstance(value, Constant):
        return Constant(range_checks.check_value(path, value.value))
    make = range_checks.uniform_range if isinstance(value, Uniform) else range_checks.integer_range
    return make(path, value.low, value.high, log=value.log, step=value.step, points=value.points)

"""One parameter's range as it is given: a text, a list, a mapping, or an object of Optuna or Ray Tune.
Nothing is ever evaluated: a text is read as a call whose arguments are literals."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.config import ranges
from hopyard.config.ranges import bad, plain
from hopyard.config.reader import shown
from hopyard.config.spellings import SPELLINGS, domain_of_call, unknown
from hopyard.config.suggest import closest, hints_for
from hopyard.domain.space import Choice, Constant, Domain, Integer, Uniform
from hopyard.errors import SpecError

_CALL = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*\s*\(", re.ASCII)
_END = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_ENDS = re.compile(rf"{_END}\s*(?:\.\.\.?|:|-|–|to)\s*{_END}")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_MAX_TEXT = 100_000
_FLAT = ("low", "high", "lower", "upper", "min", "max")
_OTHERS = ("type", "log", "step", "q", "points", "values", "when")
_EXAMPLES = (
    (
        "ranges: [16, 32, 64], uniform(0, 1), loguniform(1e-5, 1e-1), int(1, 8), {low: 0.0, high: 1.0, "
        "step: 0.1}"
    ),
)


def domain_of(given: Any, where: str) -> Domain:
    """The domain that `given` spells. Raises SpecError naming `where`."""
    given = plain(given)
    if isinstance(given, str):
        return _of_text(given, where)
    if isinstance(given, Mapping):
        return _of_mapping(given, where)
    if isinstance(given, (list, tuple)):
        return ranges.choice(where, given)
    if isinstance(given, range):
        if not given:
            raise bad(where, f"{given} holds no number")
        first, last = sorted((given[0], given[-1]))
        return ranges.whole(where, first, last, step=min(abs(given.step), max(1, last - first)))
    if given is None or isinstance(given, (int, float)):
        return Constant(ranges.single(where, given))
    return _of_object(given, where)


def _of_text(text: str, where: str) -> Domain:
    if len(text) > _MAX_TEXT:
        raise bad(
            where,
            f"a text of {len(text)} characters is no range",
            "long lists of values are written as a list",
        )
    stripped = text.strip()
    if (ends := _ENDS.fullmatch(stripped)) is not None:
        hint = (
            f"write uniform({ends[1]}, {ends[2]}), loguniform({ends[1]}, {ends[2]}) or int({ends[1]}, "
            f"{ends[2]})"
        )
        raise bad(
            where,
            f"{shown(text)} is a text, and looks like a range",
            hint,
            'a text as it stands is written {value: "…"}',
        )
    if not _CALL.search(stripped):
        return Constant(text)
    name = stripped[: stripped.index("(")].strip().rpartition(".")[2]
    if name not in SPELLINGS:
        raise unknown(where, name)
    return domain_of_call(where, name, *_arguments(stripped, where))


def _arguments(text: str, where: str) -> tuple[list[Any], dict[str, Any]]:
    """What stands in the brackets. The name of the parameter, which Optuna's suggest_… begin with, is left
    out."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as broken:
        problem = getattr(broken, "msg", None) or str(broken)
        hints = (
            ()
            if ")" in text
            else ('between { } a text with a comma needs quotes: {lr: "loguniform(1e-5, 1e-1)"}',)
        )
        raise bad(
            where, f"{shown(text)} cannot be read: {problem}", *hints, "for example loguniform(1e-5, 1e-1)"
        ) from None
    if not isinstance(call, ast.Call):
        raise bad(where, f"{shown(text)} is more than one range", "for example loguniform(1e-5, 1e-1)")
    positional = [_literal(node, where) for node in call.args]
    named = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise bad(where, f"{shown(text)} cannot be read: `**` stands in it")
        named[keyword.arg] = _literal(keyword.value, where)
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


def _literal(node: ast.expr, where: str) -> Any:
    """A literal; words without quotes are texts, as they are in YAML."""
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id.lower(), node.id)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(element, where) for element in node.elts]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise bad(
            where,
            f"`{ast.unparse(node)[:60]}` is not a number, a text or a list",
            "nothing is computed here: write the number itself",
        ) from None


def _of_mapping(given: Mapping[Any, Any], where: str) -> Domain:
    for key in given:
        if not isinstance(key, str):
            raise bad(where, f"the key {shown(key)} is not a text")
    # Optuna's JSON of a distribution
    if given.keys() == {"name", "attributes"} and isinstance(given["attributes"], Mapping):
        return domain_of_call(where, str(given["name"]), (), given["attributes"])
    heads = [key for key in given if key in SPELLINGS]
    if given.get("type") is not None:
        return _typed(given, heads, where)
    if len(heads) > 1:
        raise bad(where, f"`{heads[0]}` and `{heads[1]}` stand in it: one parameter has one range")
    if heads:
        head, rest = heads[0], {key: value for key, value in given.items() if key != heads[0]}
        if head == "value" and not rest:
            return domain_of_call(where, head, (given[head],), {})
        return _headed(head, given[head], rest, where)
    if "values" in given:
        return domain_of_call(where, "choice", (), given)
    if any(key in given for key in _FLAT):
        return domain_of_call(where, _told_by_numbers(given, where), (), given)
    raise _no_range(given, where)


def _typed(given: Mapping[str, Any], heads: list[str], where: str) -> Domain:
    """`{type: float, low: 0.0, high: 1.0}`"""
    kind, rest = given["type"], {key: value for key, value in given.items() if key != "type"}
    others = [head for head in heads if head != "value"]
    if not isinstance(kind, str) or kind not in SPELLINGS:
        raise bad(
            f"{where}.type",
            f"there is no range {shown(kind)}",
            *hints_for(str(kind), ("float", "int", "categorical", "loguniform")),
        )
    if others:
        raise bad(where, f"`type` and `{others[0]}` stand in it: one parameter has one range")
    return domain_of_call(where, kind, (), rest)


def _headed(head: str, body: Any, rest: Mapping[str, Any], where: str) -> Domain:
    """`{uniform: [0, 1], step: 0.1}`, `{loguniform: {low: 1e-5, high: 1e-1}}`, `{choice: [a, b]}`"""
    body = plain(body)
    if SPELLINGS[head].order == ("choices",):
        return domain_of_call(where, head, (body,), rest)
    if isinstance(body, Mapping):
        twice = [key for key in rest if key in body]
        if twice:
            raise bad(where, f"`{twice[0]}` is given twice")
        return domain_of_call(where, head, (), {**body, **rest})
    if not isinstance(body, Sequence) or isinstance(body, str):
        raise bad(where, f"{head}: {shown(body)} is not a list of two numbers", f"for example {head}: [1, 8]")
    return domain_of_call(where, head, body, rest)


def _told_by_numbers(given: Mapping[str, Any], where: str) -> str:
    """Whether a range without a kind is of real or of whole numbers: a whole one that was meant to be real
    would be a bad surprise."""
    ends = [plain(given[key]) for key in given if key in _FLAT or key in ("step", "q")]
    if any(isinstance(end, float) for end in ends):
        return "float"
    if all(isinstance(end, int) and not isinstance(end, bool) for end in ends):
        raise bad(where, "real or whole numbers? Both ends are whole", "say `type: float` or `type: int`")
    return "float"


def _no_range(given: Mapping[str, Any], where: str) -> SpecError:
    for key in given:
        near = closest(key, (*SPELLINGS, *_FLAT, *_OTHERS))
        if near:
            return bad(where, f"there is no key `{key}`", f"did you mean `{near}`?", *_EXAMPLES)
    if not given:
        return bad(where, "there is nothing to choose from: the mapping is empty", *_EXAMPLES)
    return bad(
        where,
        f"no range stands in it, only {', '.join(f'`{key}`' for key in list(given)[:5])}",
        *_EXAMPLES,
        "parameters are not nested: write `optimizer.lr: loguniform(1e-5, 1e-1)` for lr of optimizer",
    )


def _of_object(given: Any, where: str) -> Domain:
    if isinstance(given, (Choice, Uniform, Integer, Constant)):
        return _checked(given, where)
    library, name = type(given).__module__.partition(".")[0], type(given).__name__
    if library == "optuna" and name in SPELLINGS:
        attributes = ("choices",) if name == "CategoricalDistribution" else ("low", "high", "log", "step")
        return domain_of_call(
            where, name, (), {key: getattr(given, key) for key in attributes if hasattr(given, key)}
        )
    if library == "ray":
        return _of_ray(given, name, where)
    if callable(given):
        raise bad(
            where,
            f"{shown(given)} is code, and a space holds none",
            "a parameter that depends on another is written with `when`",
        )
    raise bad(where, f"{shown(given)} is no range", *_EXAMPLES)


def _of_ray(given: Any, name: str, where: str) -> Domain:
    """Ray Tune's sample objects, told by their attributes: lower, upper, categories, and sampler with base or
    q."""
    if name == "Categorical":
        return ranges.choice(where, list(given.categories))
    sampler = getattr(given, "sampler", None)
    step = getattr(sampler, "q", None)
    inner = getattr(sampler, "sampler", sampler)  # a quantised sampler wraps another
    kind = type(inner).__name__.strip("_").lower()
    if name not in ("Float", "Integer") or kind not in ("uniform", "loguniform", "nonetype"):
        raise unknown(where, "sample_from" if name == "Function" else "randn" if kind == "normal" else name)
    spelled = {
        ("Float", False): "uniform",
        ("Float", True): "loguniform",
        ("Integer", False): "randint",
        ("Integer", True): "lograndint",
    }
    call = spelled[name, kind == "loguniform"]
    if step is None:
        return domain_of_call(where, call, (given.lower, given.upper), {})
    return domain_of_call(
        where, {"lograndint": "qlograndint"}.get(call, f"q{call}"), (given.lower, given.upper, step), {}
    )


def _checked(given: Domain, where: str) -> Domain:
    if isinstance(given, Choice):
        return ranges.choice(where, given.values)
    if isinstance(given, Constant):
        return Constant(ranges.single(where, given.value))
    make = ranges.real if isinstance(given, Uniform) else ranges.whole
    return make(where, given.low, given.high, log=given.log, step=given.step, points=given.points)

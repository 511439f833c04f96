"""`hop.params`: a script's hyperparameters. Their defaults are in the script; overrides come from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hopyard.domain.metric_values import encode_param
from hopyard.errors import SpecError
from hopyard.sdk.batch_rule import BatchRule, BatchScale
from hopyard.sdk.process_group import ProcessGroup

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue

_TRUE_WORDS, _FALSE_WORDS = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_TYPE_NAMES = {float: "a float", int: "an int", bool: "true or false", str: "text"}
_SCALED_NAMES = ("scaling", "lr_at")  # attributes of ScaledParams


class ScaleRecorder(Protocol):
    """The run, in which all processes share a global batch."""

    group: ProcessGroup

    def record_scaled(self, values: Mapping[str, float], text: str, /) -> None:
        """Records effective values by their names in the run, and prints the line `text`, once per run."""


# set by the session of this process
recorder: ScaleRecorder | None = None


class Params:
    """Hyperparameters, as attributes and as items: `p.lr`, `p["lr"]`, `dict(p)`, `f(**p)`.

    Assignment changes a value for the script only. The recorded value of the run stays.
    """

    __slots__ = ("__dict__", "__weakref__", "_followers")

    def __init__(self, values: Mapping[str, object]) -> None:
        vars(self).update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        for follower in scaled_params(self):
            follower.follow({**vars(self), name: value})
        vars(self)[name] = value

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def keys(self) -> list[str]:
        """Returns the names in the order of declaration; `dict(p)` and `f(**p)` need it."""
        return list(vars(self))

    def values(self) -> list[Any]:
        """Returns the values in the order of declaration."""
        return list(vars(self).values())

    def items(self) -> list[tuple[str, Any]]:
        """Returns the names with their values in the order of declaration."""
        return list(vars(self).items())

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value, or `default` if there is no such parameter."""
        return vars(self).get(name, default)

    def per_batch(
        self,
        standard: int,
        /,
        *,
        rule: str = "linear",
        accumulation: int | str = 1,
        world_size: int | None = None,
        lr: str = "lr",
        batch_size: str = "batch_size",
        warmup: str | None = "warmup_steps",
        steps: str | None = "steps",
        eval_every: str | None = "eval_every",
        warmup_from: float | None = None,
    ) -> ScaledParams:
        """Returns the parameters for the real global batch, given those for a batch of `standard` samples.

        The global batch is `batch_size` times the processes of the run, times `accumulation` (a number, or
        the name of a parameter). The learning rate grows with it (rule: "linear" or "sqrt"); warm-up, steps
        and evaluation interval keep their number of samples. `p.lr_at(step)` is the rate with the gradual
        warm-up. The log gets one line, the run records the effective values beside the given ones. Raises
        SpecError for a missing or invalid parameter.

        lr, batch_size, warmup, steps, eval_every: the names of the parameters; None for a count that is not
        scaled. world_size: the processes that train, if not all of the run do. warmup_from: the rate at which
        the warm-up begins; by default the given one.
        """
        from hopyard.sdk.batch_rule import BatchRule

        batch_rule = BatchRule(
            standard, rule, accumulation, lr, batch_size, warmup, steps, eval_every, warmup_from
        )
        scaled = ScaledParams(vars(self), batch_rule, world_size)
        self._followers = (*scaled_params(self), scaled)
        return scaled

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Params) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Params({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class ScaledParams(Params):
    """The parameters with effective values: `p.lr` is the rate for the real batch. They follow the given
    ones when those change during the run.

    scaling: the factor, the global batch, and the schedule.
    """

    __slots__ = ("_rule", "_world_size", "scaling")

    scaling: BatchScale

    def __init__(self, given: Mapping[str, Any], rule: BatchRule, world_size: int | None) -> None:
        """world_size: None for the processes of the run."""
        super().__init__({})
        for name in _SCALED_NAMES:
            if name in given:
                raise SpecError(
                    f"per_batch: a parameter has the name `{name}`", hints=("give it another name",)
                )
        self._rule, self._world_size = rule, world_size
        self.follow(given)

    def follow(self, given: Mapping[str, Any]) -> None:
        """Takes changed given values, and records the effective ones. Raises SpecError for an invalid value,
        with nothing changed."""
        world_size = self._world_size
        if world_size is None:
            world_size = 1 if recorder is None else recorder.group.world_size()
        scaling = self._rule.apply(given, world_size)
        values = scaling.values()
        self.scaling = scaling
        vars(self).update({**given, **values})
        if recorder is not None:
            recorded = {f"{name}.scaled": value for name, value in values.items()}
            recorded[f"{self._rule.batch_size}.global"] = scaling.global_batch
            recorder.record_scaled(recorded, scaling.text(given))

    def lr_at(self, step: int | None = None, *, samples: int | None = None) -> float:
        """Returns the learning rate of a step (from 0), warm-up included; or the one after a number of
        samples, for a run with another number of processes after a requeue."""
        return self.scaling.lr_at(step, samples=samples)


def scaled_params(params: Params) -> tuple[ScaledParams, ...]:
    """Returns the effective parameters that batch-size rules made of these."""
    return getattr(params, "_followers", ())


def read_overrides(text: str | None) -> dict[str, ParamValue]:
    """Returns the overrides in `HOPYARD_PARAMS`: a JSON object of scalars. Raises SpecError for anything
    else."""
    if not text:
        return {}
    try:
        overrides = json.loads(text)
    except ValueError as error:
        raise SpecError(f"HOPYARD_PARAMS is not JSON: {error}") from error
    if not isinstance(overrides, dict) or not all(_is_scalar(v) for v in overrides.values()):
        raise SpecError(
            "HOPYARD_PARAMS is not an object of plain values", hints=('it looks like {"lr": 0.1}',)
        )
    return overrides


def resolve_params(defaults: Mapping[str, object], overrides: Mapping[str, ParamValue]) -> dict[str, object]:
    """Returns each default, or its override converted to the type of the default. Raises SpecError with the
    name of an invalid parameter.
    """
    resolved: dict[str, object] = {}
    for name, given_default in defaults.items():
        default = _plain_scalar(given_default)
        if not _is_scalar(default) and _as_json(default) is None:
            hint = "a parameter is a number, text, true, false, None, or a list or dict of them"
            raise SpecError(
                f"hop.params: the default of `{name}` is a {type(default).__name__}", hints=(hint,)
            )
        resolved[name] = convert_override(name, overrides[name], default) if name in overrides else default
    return resolved


def recorded_values(values: Mapping[str, object]) -> dict[str, ParamValue]:
    """Returns the values as a run records them: a list, tuple or dict as its JSON text, NaN and infinities
    as texts."""
    return {
        name: encode_param(value) if _is_scalar(value) else _as_json(value)  # type: ignore[arg-type]
        for name, value in values.items()
    }


def _plain_scalar(value: object) -> object:
    """Returns a scalar of NumPy or a text of a subclass (an enum) as Python's own type."""
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            # `str` of an enum is its name
            return value if type(value) is plain else str.__str__(value) if plain is str else plain(value)
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _as_json(value: object) -> str | None:
    if not isinstance(value, (list, tuple, dict)):
        return None
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None


def _convert_container(value: ParamValue, default: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> object:
    """Raises ValueError."""
    parsed: Any = value
    if isinstance(value, str):
        text = value.strip()
        try:
            parsed = json.loads(text)
        except ValueError:
            if text[:1] in ("[", "(", "{"):
                import ast

                try:
                    parsed = ast.literal_eval(text)
                except (SyntaxError, MemoryError, RecursionError) as error:
                    raise ValueError from error
            else:
                parsed = [part.strip() for part in text.split(",")] if text else []
    if isinstance(default, dict):
        if not isinstance(parsed, dict):
            raise ValueError
        return parsed
    if isinstance(parsed, dict) or parsed is None:
        raise ValueError
    elements = list(parsed) if isinstance(parsed, (list, tuple)) else [parsed]
    if default and all(type(part) is type(default[0]) for part in default) and _is_scalar(default[0]):
        elements = [convert_override("", part, default[0]) for part in elements]
    return type(default)(elements) if type(default) in (list, tuple) else elements


def convert_override(name: str, value: ParamValue, default: object) -> Any:
    """Returns `value` converted to the type of `default`. Raises SpecError if the conversion fails."""
    if default is None:
        return value
    expected = type(default)
    try:
        if isinstance(default, (list, tuple, dict)):
            return _convert_container(value, default)
        if expected is bool:
            return _to_bool(value)
        if expected is int:
            return _to_int(value)
        if expected is float:
            if isinstance(value, bool) or value is None:
                raise ValueError
            return float(value)
        if value is None:
            raise ValueError
        return json.dumps(value) if isinstance(value, bool) else str(value)
    except (ValueError, OverflowError, SpecError):
        shown = json.dumps(value) if not isinstance(value, str) else value
        expected_name = _TYPE_NAMES.get(expected) or f"a {expected.__name__}"
        raise SpecError(
            f"-p {name}={shown}: `{name}` is {expected_name}", hints=(f"its default is {default!r}",)
        ) from None


def unknown_overrides(overrides: Mapping[str, ParamValue], declared: Mapping[str, ParamValue]) -> list[str]:
    """Returns a sentence for each override without a matching parameter of the script."""
    from difflib import get_close_matches

    sentences = []
    for name in overrides:
        if name in declared:
            continue
        close = get_close_matches(name, declared, n=1)
        suggestion = (
            f"did you mean `{close[0]}`?"
            if close
            else f"it has {', '.join(declared)}"
            if declared
            else "it declares none (hop.params)"
        )
        sentences.append(f"-p {name}=…: the script has no parameter `{name}`; {suggestion}")
    return sentences


def _is_scalar(value: object) -> bool:
    return value is None or type(value) in (str, int, float, bool)


def _to_bool(value: ParamValue) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE_WORDS:
        return True
    if text in _FALSE_WORDS:
        return False
    raise ValueError


def _to_int(value: ParamValue) -> int:
    if isinstance(value, bool) or value is None:
        raise ValueError
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)  # 1e3
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError
        return int(value)
    return value

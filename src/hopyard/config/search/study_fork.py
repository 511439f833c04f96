"""The study that continues the best model of another study: one trial, which begins with that model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hopyard.config.key_values import format_value
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import BudgetUnit, InitialState, SearcherSpec, StudySpec
from hopyard.domain.suggest import unknown_name_hints
from hopyard.errors import SpecError


def fork_study_spec(
    study: StudySpec, source: InitialState, *, changes: Mapping[str, ParamValue], epochs: int | None
) -> StudySpec:
    """Returns the fork of `study`. changes: of the best trial's parameters. epochs: how many to add; None
    adds as many as the study gave its trials at most. Epochs count on from those of the model. Raises
    SpecError for a parameter that the study does not have, and for a value that it cannot have."""
    start_epoch = study.beginning.epoch if study.beginning is not None else 0
    per_epoch = study.mop.partitions.parts if study.mop and study.budget_unit is BudgetUnit.STEPS else 1
    added = study.max_epochs - start_epoch if epochs is None else epochs * per_epoch
    params = apply_changes(study.space, source.params, changes)
    return replace(
        study,
        space=Space(tuple(Parameter(name, Constant(value)) for name, value in params.items())),
        searcher=SearcherSpec("grid"),  # of one point
        trials=1,
        concurrent=0,  # the remaining workers may train it together
        max_epochs=source.epoch + added,
        points=(),  # they are those of the first trials of the search
        beginning=source,
        continues="",
    )


def apply_changes(
    space: Space, params: Mapping[str, ParamValue], changes: Mapping[str, ParamValue]
) -> dict[str, ParamValue]:
    """Returns the changed parameters, without those that no longer exist. Raises SpecError."""
    parameters = {parameter.name: parameter for parameter in space.parameters}
    names = list(dict.fromkeys([*parameters, *params]))
    for name, value in changes.items():
        if name not in names:
            raise SpecError(
                f"params.{name}: the study has no such parameter",
                hints=unknown_name_hints(name, names, subject="it has"),
            )
        _check_kind(name, value, _parse_values(parameters.get(name), params.get(name)))
    values: dict[str, ParamValue] = {}
    for parameter in space.parameters:
        name = parameter.name
        if not space.is_active(parameter, values):
            if name in changes:
                raise SpecError(
                    f"params.{name}: it exists only where {_parameter_path(parameter)}",
                    hints=("change that, too, or leave this out",),
                )
        elif name in changes or name in params:
            values[name] = changes.get(name, params.get(name))
        elif isinstance(parameter.domain, Constant):
            values[name] = parameter.domain.value
        else:
            raise SpecError(
                f"params.{name}: it exists where {_parameter_path(parameter)}, and the best trial had none",
                hints=(f"say its value, too: `-p {name}=…`",),
            )
    return values | {
        name: changes.get(name, value) for name, value in params.items() if name not in parameters
    }


def _parameter_path(parameter: Parameter) -> str:
    return " and ".join(
        f"{c.parameter} is {' or '.join(map(format_value, c.values))}" for c in parameter.conditions
    )


def _parse_values(parameter: Parameter | None, current: ParamValue) -> Sequence[ParamValue]:
    """Returns values of the kind that the parameter has."""
    match parameter.domain if parameter is not None else Constant(current):
        case Choice(values):
            return values
        case Constant(value):
            return (value,)
        case Uniform():
            return (0.5,)
        case Integer():
            return (1,)


def _check_kind(name: str, value: ParamValue, current: Sequence[ParamValue]) -> None:
    """Raises SpecError for a value of another kind: numbers stay numbers, integers stay integers. A text may
    be one that was not searched."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"params.{name}: {value} is not finite")
    kinds = {_type_name(item) for item in current}
    kind = _type_name(value)
    if kind in kinds or (kind == "a whole number" and "a number" in kinds) or kinds == {"null"}:
        return
    allowed = " or ".join(sorted(kinds))
    shown = ", ".join(map(format_value, current)) if len(current) > 1 else ""
    raise SpecError(
        f"params.{name}: {format_value(value)} is not {allowed}",
        hints=(f"the study tried {shown}",) if shown else (),
    )


def _type_name(value: ParamValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
    return "a text"

"""Converts a StudySpec to JSON and back: in the RunSpec of a study, and as the first record of its journal.
Standard library only, because it is read inside users' processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hopyard.domain.run_environment import MASKED_VALUE
from hopyard.domain.space import Choice, Condition, Constant, Domain, Integer, Parameter, Space, Uniform
from hopyard.domain.study import (
    BudgetUnit,
    Goal,
    InitialState,
    MopSpec,
    Parallel,
    PartitionPlan,
    SearcherSpec,
    StopRules,
    StudySpec,
)
from hopyard.errors import SpecError

_DOMAIN_TYPES: Mapping[str, type[Domain]] = {
    "choice": Choice,
    "uniform": Uniform,
    "integer": Integer,
    "constant": Constant,
}
_DOMAIN_NAMES = {kind: name for name, kind in _DOMAIN_TYPES.items()}


def study_to_json(spec: StudySpec) -> dict[str, Any]:
    """Returns JSON that `study_from_json` reads as an equal StudySpec, with the same types."""
    return {**asdict(spec), "space": space_to_json(spec.space)}


def study_to_journal(spec: StudySpec) -> dict[str, Any]:
    """Returns the JSON for a journal, which all users may read: without the values of variables."""
    return without_values(study_to_json(spec))


def without_values(study: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON of a study without the values of its trials' variables."""
    trial = study.get("trial")
    if not trial or not trial.get("env"):
        return dict(study)
    return {**study, "trial": {**trial, "env": dict.fromkeys(trial["env"], MASKED_VALUE)}}


def space_to_json(space: Space) -> list[dict[str, Any]]:
    """Returns a list, since the order of parameters matters and many JSON tools sort keys."""
    return [
        {
            "name": parameter.name,
            "kind": _DOMAIN_NAMES[type(parameter.domain)],
            **asdict(parameter.domain),
            "conditions": [
                {"parameter": c.parameter, "values": list(c.values)} for c in parameter.conditions
            ],
        }
        for parameter in space.parameters
    ]


def study_from_json(value: Mapping[str, Any]) -> StudySpec:
    """Raises SpecError for JSON that `study_to_json` would not have written. The meaning of the values was
    checked when the study was submitted."""
    try:
        return _parse_study(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            f"study: it is not the spec of a study: {error!r}",
            hints=("was it written by another version of Hopyard?",),
        ) from error


def space_from_json(value: Any) -> Space:
    return Space(tuple(_parse_parameter(parameter) for parameter in value))


def _parse_study(value: Mapping[str, Any]) -> StudySpec:
    fields = dict(value)
    fields["space"] = space_from_json(value["space"])
    fields["goal"], fields["parallel"] = Goal(value["goal"]), Parallel(value["parallel"])
    # studies of earlier versions have none of these
    fields["points"] = tuple(map(dict, value.get("points") or ()))
    fields["stop"] = StopRules(**(value.get("stop") or {}))
    fields["budget_unit"] = BudgetUnit(value.get("budget_unit", BudgetUnit.EPOCHS))
    fields["searcher"] = SearcherSpec(value["searcher"]["name"], dict(value["searcher"]["options"]))
    mop = value.get("mop")
    fields["mop"] = None if mop is None else MopSpec(**{**mop, "partitions": _parse_plan(mop["partitions"])})
    beginning = value.get("beginning")
    fields["beginning"] = (
        None
        if beginning is None
        else InitialState(
            **{
                **beginning,
                "params": dict(beginning["params"]),
                "value": float(beginning["value"]),
                "visited": tuple(beginning.get("visited") or ()),
            }
        )
    )
    return StudySpec(**fields)


def _parse_plan(value: Mapping[str, Any]) -> PartitionPlan:
    return PartitionPlan(**{**value, "columns": tuple(value["columns"])})


def _parse_parameter(record: Mapping[str, Any]) -> Parameter:
    fields = {key: value for key, value in record.items() if key not in ("name", "kind", "conditions")}
    if "values" in fields:
        fields["values"] = tuple(fields["values"])
    domain: Domain = _DOMAIN_TYPES[record["kind"]](**fields)
    if isinstance(domain, Uniform):  # a writer that knows one kind of number leaves out the `.0`
        step = None if domain.step is None else float(domain.step)
        domain = Uniform(float(domain.low), float(domain.high), domain.log, step, domain.points)
    conditions = tuple(
        Condition(condition["parameter"], tuple(condition["values"])) for condition in record["conditions"]
    )
    return Parameter(record["name"], domain, conditions)

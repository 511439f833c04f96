"""A StudySpec as JSON and back: in the RunSpec of a study, and as the first record of its journal.
Standard library only, because it is read inside users' processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hopyard.domain.space import Choice, Condition, Constant, Domain, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Beginning, Goal, MopSpec, Parallel, PartitionPlan, SearcherSpec, StudySpec
from hopyard.errors import SpecError

_KINDS: Mapping[str, type[Domain]] = {
    "choice": Choice,
    "uniform": Uniform,
    "integer": Integer,
    "constant": Constant,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def study_json(spec: StudySpec) -> dict[str, Any]:
    """As `study_of_json` reads it back: equal, and of the same types."""
    return {**asdict(spec), "space": space_json(spec.space)}


def space_json(space: Space) -> list[dict[str, Any]]:
    """A list, since the order of parameters matters and many a JSON tool sorts keys."""
    return [
        {
            "name": parameter.name,
            "kind": _NAMES[type(parameter.domain)],
            **asdict(parameter.domain),
            "conditions": [
                {"parameter": c.parameter, "values": list(c.values)} for c in parameter.conditions
            ],
        }
        for parameter in space.parameters
    ]


def study_of_json(given: Mapping[str, Any]) -> StudySpec:
    """Raises SpecError for what `study_json` would not have written; what the values mean was checked when
    the study was asked for."""
    try:
        return _study(given)
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise SpecError(
            f"study: it is not the spec of a study: {wrong!r}",
            hints=("was it written by another version of Hopyard?",),
        ) from wrong


def space_of_json(given: Any) -> Space:
    return Space(tuple(_parameter(each) for each in given))


def _study(given: Mapping[str, Any]) -> StudySpec:
    fields = dict(given)
    fields["space"] = space_of_json(given["space"])
    fields["goal"], fields["parallel"] = Goal(given["goal"]), Parallel(given["parallel"])
    fields["searcher"] = SearcherSpec(given["searcher"]["name"], dict(given["searcher"]["options"]))
    mop = given.get("mop")
    fields["mop"] = None if mop is None else MopSpec(**{**mop, "partitions": _plan(mop["partitions"])})
    beginning = given.get("beginning")
    fields["beginning"] = (
        None
        if beginning is None
        else Beginning(
            **{**beginning, "params": dict(beginning["params"]), "value": float(beginning["value"])}
        )
    )
    return StudySpec(**fields)


def _plan(given: Mapping[str, Any]) -> PartitionPlan:
    return PartitionPlan(**{**given, "columns": tuple(given["columns"])})


def _parameter(given: Mapping[str, Any]) -> Parameter:
    fields = {key: value for key, value in given.items() if key not in ("name", "kind", "conditions")}
    if "values" in fields:
        fields["values"] = tuple(fields["values"])
    domain: Domain = _KINDS[given["kind"]](**fields)
    if isinstance(domain, Uniform):  # a writer that knows one kind of number leaves out the `.0`
        step = None if domain.step is None else float(domain.step)
        domain = Uniform(float(domain.low), float(domain.high), domain.log, step, domain.points)
    conditions = tuple(Condition(each["parameter"], tuple(each["values"])) for each in given["conditions"])
    return Parameter(given["name"], domain, conditions)

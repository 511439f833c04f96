"""How a study looks on the wire: what `config.schemas.study_json` writes, with the bounds that a request must
keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hopyard.config.limits import MAX_CHOICES, MAX_SECONDS, MAX_TRIALS
from hopyard.config.schemas.fields import (
    LINE,
    MAX_NAMES,
    Id,
    Int64,
    Key,
    Name,
    ParamField,
    RequestModel,
    Text,
    full_match,
)
from hopyard.domain.ids import RUN_ID_PATTERN, STATE_PATTERN
from hopyard.domain.run import MAX_REPLICAS
from hopyard.domain.study import DEFAULT_RETRIES, BudgetUnit, Goal, Parallel

_ParamValues = Annotated[tuple[ParamField, ...], Meta(min_length=1, max_length=MAX_CHOICES)]
_GridPoints = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]


class ConditionIn(RequestModel):
    """The parameter exists only where `parameter` exists and has one of these values."""

    parameter: Key
    values: _ParamValues


class ParameterIn(RequestModel, tag_field="kind", kw_only=True):
    name: Key
    conditions: Annotated[tuple[ConditionIn, ...], Meta(max_length=MAX_NAMES)] = ()


class ChoiceIn(ParameterIn, tag="choice", kw_only=True):
    values: _ParamValues


class UniformIn(ParameterIn, tag="uniform", kw_only=True):
    low: float
    high: float
    log: bool = False
    step: float | None = None
    points: _GridPoints | None = None


class IntegerIn(ParameterIn, tag="integer", kw_only=True):
    low: Int64
    high: Int64
    log: bool = False
    step: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 1
    points: _GridPoints | None = None


class ConstantIn(ParameterIn, tag="constant", kw_only=True):
    value: ParamField


AnyParameter = ChoiceIn | UniformIn | IntegerIn | ConstantIn


class SearcherIn(RequestModel):
    name: Annotated[str, Meta(min_length=1, max_length=1024, pattern=LINE)] = "random"
    options: Annotated[dict[Key, ParamField], Meta(max_length=MAX_NAMES)] = msgspec.field(
        default_factory=dict
    )


class PartitionPlanIn(RequestModel):
    parts: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)]
    seed: Int64 = 0
    validation: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    validation_from: Text = ""
    stratify: Text = ""
    columns: Annotated[tuple[Key, ...], Meta(max_length=100_000)] = ()
    files: Text = ""
    format: Text = ""


class MopIn(RequestModel):
    trainable: Annotated[str, Meta(min_length=1, max_length=1024, pattern=LINE)]
    workers: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)]
    dataset: Name
    partitions: PartitionPlanIn
    deterministic: bool = True
    threads: Annotated[int, Meta(ge=0, le=4096)] = 0
    hybrid: bool = True
    unit_timeout_s: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] = 0.0
    order: Literal["free", "fixed"] = "free"
    evaluate_every: Annotated[int, Meta(ge=1, le=10**9)] = 1


class BeginningIn(RequestModel):
    """The state that a fork trains on: `POST /runs/{id}/fork` says it."""

    run: Id
    state: Annotated[str, Meta(pattern=full_match(STATE_PATTERN))]
    study: Text
    trial: Annotated[str, Meta(pattern=full_match(r"[0-9]{1,19}"))]
    epoch: Annotated[int, Meta(ge=0, le=10**9)]
    value: float
    params: Annotated[dict[Key, ParamField], Meta(max_length=MAX_NAMES)] = msgspec.field(default_factory=dict)
    visited: Annotated[list[Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]], Meta(max_length=MAX_REPLICAS)] = (
        msgspec.field(default_factory=list)
    )


class StopRulesIn(RequestModel):
    time_s: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] = 0.0
    target: float | None = None
    patience: Annotated[int, Meta(ge=0, le=MAX_TRIALS)] = 0


class StudyIn(RequestModel):
    """Everything that decides what a study does. trial: of `parallel: trials`, the spec of a trial's run
    without its drawn params."""

    name: Name
    space: Annotated[tuple[AnyParameter, ...], Meta(max_length=MAX_NAMES)]
    metric: Key
    goal: Goal
    parallel: Parallel
    searcher: SearcherIn = msgspec.field(default_factory=SearcherIn)
    trials: Annotated[int, Meta(ge=1, le=MAX_TRIALS)] | None = None
    concurrent: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)] = 0
    max_epochs: Annotated[int, Meta(ge=1, le=10**9)] = 1
    budget_given: bool = False
    seed: Int64 = 0
    budget_param: Key = "epochs"
    budget_unit: BudgetUnit = BudgetUnit.EPOCHS
    steps_per_epoch: Annotated[int, Meta(ge=0, le=10**9)] = 0
    retries: Annotated[int, Meta(ge=0, le=1000)] = DEFAULT_RETRIES
    retry_errors: Annotated[int, Meta(ge=0, le=1000)] = 0
    max_failures: Annotated[int, Meta(ge=0, le=MAX_TRIALS)] | None = None
    points: Annotated[
        tuple[Annotated[dict[Key, ParamField], Meta(max_length=MAX_NAMES)], ...], Meta(max_length=10_000)
    ] = ()
    stop: StopRulesIn = msgspec.field(default_factory=StopRulesIn)
    trial: dict[str, Any] | None = None
    mop: MopIn | None = None
    tensorboard: bool = False
    mlflow: Text = ""
    beginning: BeginningIn | None = None
    continues: Annotated[str, Meta(pattern=full_match(f"({RUN_ID_PATTERN})?"))] = ""


def to_study_json(request: StudyIn) -> Mapping[str, Any]:
    """Returns the StudySpec as JSON, equal to the JSON of the store."""
    record: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode(request))
    return record

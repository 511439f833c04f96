"""How runs and specs look on the wire: the domain's records with the bounds that a request must keep.

A body is decoded and checked in one go (msgspec, in C) and then turned into the domain's value; the same
declarations make the OpenAPI description. A test holds the fields against those of `domain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from hopyard.domain.attempt import Exit, ReplicaPhase
from hopyard.domain.gang import Closeness
from hopyard.domain.resources import WHOLE_GPU
from hopyard.domain.run import MAX_REPLICAS, Attempt, Run, RunEvent, RunPhase, RunSpec
from hopyard.domain.text import CONTROLS
from hopyard.errors import SpecError
from hopyard.server.authentication import Caller
from hopyard.server.masking import visible_run
from hopyard.server.responses import friendly_validation_error
from hopyard.server.schemas.fields import (
    LINE,
    MAX_NAMES,
    EnvKey,
    Hex,
    Id,
    Int64,
    Key,
    Label,
    LimitBytes,
    LongText,
    Name,
    ParamField,
    RequestModel,
    Seconds,
    SecretName,
    Text,
    full_match,
)
from hopyard.server.schemas.studies import StudyIn, to_study_json

MAX_ROLES, MAX_DATASETS = 64, 64
# As large as the command line takes: what no node has is refused in words that say what is missing.
MAX_CPU_MILLI, MAX_BYTES, MAX_GPUS, MAX_EXTRAS, MAX_EXTRA_NAMES = 10**9, 2**60, 999_999, 10**9, 64


# -- what a run is made of -----------------------------------------------------------------------------------


class ResourcesIn(RequestModel):
    cpu_milli: Annotated[int, Meta(ge=0, le=MAX_CPU_MILLI)] = 1000
    memory_bytes: Annotated[int, Meta(ge=0, le=MAX_BYTES)] = 0
    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS)] = 0
    gpu_models: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=128, pattern=LINE)], ...], Meta(max_length=64)
    ] = ()
    cpu_limited: bool = False
    gpu_milli: Annotated[int, Meta(ge=0, lt=WHOLE_GPU)] = 0
    gpu_memory_bytes: Annotated[int, Meta(ge=0, le=MAX_BYTES)] = 0
    extras: Annotated[
        tuple[tuple[Name, Annotated[int, Meta(ge=1, le=MAX_EXTRAS)]], ...], Meta(max_length=MAX_EXTRA_NAMES)
    ] = ()


class WhereIn(RequestModel):
    """Which nodes may be used: in one of these pools (none named: any), with all of these labels."""

    pools: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    labels: Annotated[tuple[tuple[Key, Text], ...], Meta(max_length=64)] = ()


class TopologyIn(RequestModel):
    """How close replicas are to each other, within domains of a level: `node`, or the name of a label of
    nodes."""

    level: Key
    rule: Closeness
    slice: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1


class RoleIn(RequestModel):
    command: Annotated[tuple[LongText, ...], Meta(min_length=1, max_length=10_000)]
    name: Name = "worker"
    replicas: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1
    resources: ResourcesIn = msgspec.field(default_factory=ResourcesIn)
    min_replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)] = 0
    where: WhereIn = msgspec.field(default_factory=WhereIn)
    topology: TopologyIn | None = None
    essential: bool = True


class DatasetRefIn(RequestModel):
    name: Name
    version: Annotated[int, Meta(ge=0, le=10**9)] = 0
    manifest: Hex | None = None


class GitIn(RequestModel):
    commit: Text
    branch: Text = ""
    dirty: bool = False
    remote: Text = ""
    diff: Hex | None = None


class EnvironmentIn(RequestModel):
    interpreter: Annotated[str, Meta(pattern=full_match(f"(/[^{CONTROLS}]*)?"), max_length=4096)] = ""
    requirements: Hex | None = None
    lock: Hex | None = None
    python: Annotated[str, Meta(pattern=full_match(r"([0-9]+(\.[0-9]+){0,2})?"), max_length=32)] = ""
    packages: Annotated[dict[Key, Text], Meta(max_length=100_000)] = msgspec.field(default_factory=dict)


class ResumeIn(RequestModel):
    """foreign: set by the server for a checkpoint that is another user's, or not one of `run`; only tensors,
    arrays and plain values are read of it."""

    run: Id
    step: Int64
    manifest: Hex
    foreign: bool = False


class SpecIn(RequestModel):
    """Everything that decides what a run does: `RunSpec` of the domain.
    queue, priority: null takes what the tree of queues says."""

    project: Name
    roles: Annotated[tuple[RoleIn, ...], Meta(min_length=1, max_length=MAX_ROLES)]
    code: Hex | None = None
    label: Label = ""
    datasets: Annotated[tuple[DatasetRefIn, ...], Meta(max_length=MAX_DATASETS)] = ()
    params: Annotated[dict[Key, ParamField], Meta(max_length=MAX_NAMES)] = msgspec.field(default_factory=dict)
    env: Annotated[dict[EnvKey, LongText], Meta(max_length=MAX_NAMES)] = msgspec.field(default_factory=dict)
    tags: Annotated[dict[Key, Text], Meta(max_length=MAX_NAMES)] = msgspec.field(default_factory=dict)
    environment: EnvironmentIn = msgspec.field(default_factory=EnvironmentIn)
    git: GitIn | None = None
    queue: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=100)] | None = None
    preemptible: bool = True
    topology: TopologyIn | None = None
    time_limit_s: Seconds | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 4
    forked_from: Id | None = None
    resume: ResumeIn | None = None
    study: StudyIn | None = None
    parent: Id | None = None
    secrets: Annotated[tuple[SecretName, ...], Meta(max_length=MAX_NAMES)] = ()
    max_output_bytes: LimitBytes | None = None
    max_metrics_bytes: LimitBytes | None = None


def to_run_spec(request: SpecIn) -> RunSpec:
    if request.study is None:
        return msgspec.convert(request, RunSpec, from_attributes=True)
    plain = msgspec.convert(msgspec.structs.replace(request, study=None), RunSpec, from_attributes=True)
    return replace(plain, study=to_study_json(request.study))


def run_spec_from_json(values: Mapping[str, Any], *, path: str) -> RunSpec:
    """A RunSpec that stands as JSON within another request. Raises SpecError naming the path."""
    try:
        return to_run_spec(msgspec.convert(values, SpecIn))
    except msgspec.ValidationError as bad:
        raise SpecError(f"{path}.{friendly_validation_error(str(bad))}") from bad


# -- what goes out -------------------------------------------------------------------------------------------

LatestMetricsField = Mapping[str, tuple[int, float | None]]


class ProgressOut(Struct, frozen=True):
    """total: null where it is not known. Numbers that are not finite are null everywhere."""

    done: float
    total: float | None
    unit: str


class PinnedOut(Struct, frozen=True):
    """The version that was the newest one of a dataset when the run was submitted, pushed by somebody
    else."""

    dataset: str
    version: int
    created_by: str
    created_at: datetime


class RunOut(Struct, frozen=True, kw_only=True):
    """A run. `name` is written `user/project/number`. latest, attempts, events and progress are given where
    the address says so. stopped_by: the user who asked it to end, where the audit log tells. trials: of a
    study, how many of its trials' runs are in each phase that has any.

    spec: values of `env` are `***` for everybody but the run's user. machine_env: variables of the machine
    that its processes got; null in the place of a value that may be secret. pinned, not_inherited,
    queue_gone: in the answer to a submission: data of others that it found as the newest, names of variables
    and secrets of the forked run that another user's fork does not take over, and the queue of the forked run
    where it was removed. forked_from_name: of a fork, the name of the run that it was forked from; null where
    that was removed. elsewhere: sentences about attempts whose output, checkpoints and files lie with another
    server of the same database. synced_at: of a run that was recorded offline, when the last part of it came;
    it counts as running until all has come. unstored: sentences about what of it could not be stored and was
    given up: what, why, and where it is kept. attempts, events: the newest hundred, in order;
    `/runs/{id}/attempts` and `/runs/{id}/events` list all. events: starts that were promised, promises that
    were broken, by what, and requests to make room, in order. summary, latest: a value that is not a finite
    number is null.
    """

    id: str
    name: str
    spec: RunSpec
    phase: RunPhase
    submitted_at: datetime
    attempt: Attempt | None
    started_at: datetime | None
    ended_at: datetime | None
    exit: Exit | None
    params: Mapping[str, str | int | float | bool | None]
    summary: Mapping[str, float | None]
    artifact: str | None
    stop_requested: bool
    hold_reason: str
    hold_detail: str
    position: int | None
    blocked_by: tuple[str, ...]
    expected_at: datetime | None
    promised_at: datetime | None
    preemptions: int
    served_s: float
    offline: bool
    synced_at: datetime | None
    unstored: tuple[str, ...]
    held_by: str | None
    note: str
    latest: LatestMetricsField | UnsetType = UNSET
    trials: Mapping[RunPhase, int] | UnsetType = UNSET
    attempts: Sequence[Attempt] | UnsetType = UNSET
    events: Sequence[RunEvent] | UnsetType = UNSET
    progress: ProgressOut | UnsetType | None = UNSET
    stopped_by: str | UnsetType | None = UNSET
    machine_env: Mapping[str, str | None] | UnsetType = UNSET
    pinned: Sequence[PinnedOut] | UnsetType = UNSET
    not_inherited: Sequence[str] | UnsetType = UNSET
    queue_gone: str | UnsetType = UNSET
    forked_from_name: str | UnsetType | None = UNSET
    elsewhere: Sequence[str] | UnsetType = UNSET


_RUN_FIELDS = tuple(field for field in Run.__dataclass_fields__ if field != "name")


def to_run_out(run: Run, caller: Caller, **more: Any) -> RunOut:
    """A run as it goes out to this caller; `more` gives the fields that not every address tells."""
    seen = visible_run(caller, run)
    return RunOut(name=str(run.name), **{field: getattr(seen, field) for field in _RUN_FIELDS}, **more)


class RunsOut(Struct, frozen=True):
    """next: `before` of the next page; null at the end."""

    runs: list[RunOut]
    next: str | None


class ReplicaStatusIn(RequestModel):
    rank: Annotated[int, Meta(ge=0, lt=MAX_REPLICAS * MAX_ROLES)]
    phase: ReplicaPhase
    detail: Annotated[str, Meta(max_length=4096)] = ""
    exit: Exit | None = None
    began_s: Annotated[float, Meta(ge=0, le=1e9, description="seconds since its script started")] | None = (
        None
    )
    ended_s: Annotated[float, Meta(ge=0, le=1e9, description="seconds since it ended")] | None = None

"""How runs look in answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from hopyard.config.schemas.fields import RequestModel
from hopyard.config.schemas.runs import MAX_ROLES
from hopyard.domain.attempt import Exit, ReplicaPhase
from hopyard.domain.run import MAX_REPLICAS, Attempt, Run, RunEvent, RunPhase, RunSpec
from hopyard.server.authentication import Caller
from hopyard.server.masking import visible_run

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

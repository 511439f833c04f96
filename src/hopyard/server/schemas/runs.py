"""Schemas of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from hopyard.config.schemas.fields import RequestModel
from hopyard.config.schemas.runs import MAX_ROLES
from hopyard.domain.attempt import Exit, ReplicaPhase
from hopyard.domain.metric_values import MetricValue, encode_value
from hopyard.domain.run import MAX_REPLICAS, Attempt, Run, RunEvent, RunPhase, RunSpec
from hopyard.server.authentication import Caller
from hopyard.server.masking import visible_run

LatestMetricsField = Mapping[str, tuple[int, MetricValue]]


class ProgressOut(Struct, frozen=True):
    """total: null if it is unknown."""

    done: float
    total: float | None
    unit: str


class PinnedOut(Struct, frozen=True):
    """The newest version of a dataset at the time of the submission, if another user pushed it."""

    dataset: str
    version: int
    created_by: str
    created_at: datetime


class RunOut(Struct, frozen=True, kw_only=True):
    """A run. `name` has the form `user/project/number`. starred, latest, attempts, events and progress are in
    the responses of some paths only. spec: values of `env` are `***` for all callers except the run's user.
    summary, latest: values that are not finite are `"NaN"`, `"Infinity"` and `"-Infinity"`.

    stopped_by: the user who requested the stop, if the audit log has a record. trials: for a study, the
    number of its trials by phase, without empty phases. machine_env: the environment variables that its
    processes inherited from the machine; null replaces a value that may be secret. forked_from_name: for a
    fork, the name of the source run; null if that was removed.

    pinned, not_inherited, queue_gone: in the response to a submission. pinned: versions of other users that
    were pinned as the newest. not_inherited: variables and secrets of the source run that another user's fork
    does not inherit. queue_gone: the queue of the source run, if it was removed.

    elsewhere: sentences about attempts whose output, checkpoints and files another server of the database
    stores. synced_at: for a run that was recorded offline, the time of its latest upload; it counts as
    running until the upload is complete. unstored: sentences about data that could not be stored, why, and
    where it is kept.

    attempts, events: the newest hundred, by time; `/runs/{id}/attempts` and `/runs/{id}/events` list all.
    paused_at: since when the phase is `paused`. unread_params: given parameters that no process of the run
    read, so their values had no effect; with the events. events: promised starts, broken promises with the
    reason, and preemption requests.
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
    summary: Mapping[str, MetricValue]
    artifact: str | None
    run_folder: str | None
    run_folder_bytes: int
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
    archived: bool
    paused_at: datetime | None = None
    starred: bool | UnsetType = UNSET
    latest: LatestMetricsField | UnsetType = UNSET
    trials: Mapping[RunPhase, int] | UnsetType = UNSET
    attempts: Sequence[Attempt] | UnsetType = UNSET
    events: Sequence[RunEvent] | UnsetType = UNSET
    unread_params: Sequence[str] | UnsetType = UNSET
    progress: ProgressOut | UnsetType | None = UNSET
    stopped_by: str | UnsetType | None = UNSET
    machine_env: Mapping[str, str | None] | UnsetType = UNSET
    pinned: Sequence[PinnedOut] | UnsetType = UNSET
    not_inherited: Sequence[str] | UnsetType = UNSET
    queue_gone: str | UnsetType = UNSET
    forked_from_name: str | UnsetType | None = UNSET
    elsewhere: Sequence[str] | UnsetType = UNSET


_RUN_FIELDS = tuple(field for field in Run.__dataclass_fields__ if field not in ("name", "summary"))


def to_run_out(run: Run, caller: Caller, **fields: Any) -> RunOut:
    """Returns the run as this caller may see it. more: the fields that only some responses have."""
    visible = visible_run(caller, run)
    return RunOut(
        name=str(run.name),
        summary={name: encode_value(value) for name, value in visible.summary.items()},
        **{field: getattr(visible, field) for field in _RUN_FIELDS},
        **fields,
    )


def encode_latest(latest: Mapping[str, tuple[int, float]]) -> dict[str, tuple[int, MetricValue]]:
    return {name: (step, encode_value(value)) for name, (step, value) in latest.items()}


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

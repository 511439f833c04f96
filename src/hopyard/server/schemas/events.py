"""Events: what changed, with the short state of its subject."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from hopyard.domain.metric_values import MetricValue
from hopyard.domain.run import RunPhase
from hopyard.server.schemas.runs import LatestMetricsField

EventKind = Literal["open", "reset", "run", "study", "node", "queues", "reservation", "report"]


class EventRunOut(Struct, frozen=True):
    """The short state of a run when the event was sent; its values are truncated as in a listing. attempt:
    the number of the newest attempt, 0 before the first."""

    id: str
    name: str
    user: str
    project: str
    label: str
    phase: RunPhase
    queue: str | None
    parent: str | None
    tags: Mapping[str, str]
    note: str
    archived: bool
    attempt: int
    stop_requested: bool
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    reason: str
    params: Mapping[str, str | int | float | bool | None]
    summary: Mapping[str, MetricValue]
    latest: LatestMetricsField


class EventOut(Struct, frozen=True):
    """The `data` of an event, as JSON.

    kind: `open` is the first event of a connection, `reset` the first one if changes may be missing. change:
    what changed. detail: the new value if it is short, such as a phase, the step of a checkpoint, the text of
    an alert; of a deleted run its name. subject: the id of a run, or a name. run: for a run or a study that
    still exists.
    """

    kind: EventKind
    change: str = ""
    subject: str = ""
    detail: str = ""
    at: datetime | UnsetType = UNSET
    run: EventRunOut | UnsetType = UNSET

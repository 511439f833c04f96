"""What a store keeps of a plan: sentences stand where a plan has typed causes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hopyard.domain.breach_causes import BreachCause
from hopyard.domain.cluster import Promise
from hopyard.domain.gang import Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import AttemptId, GangId, Version


@dataclass(frozen=True, slots=True)
class HoldRecord:
    """Why a gang waits; `detail` is a sentence. expected_at: when it is expected to start, where that is
    known (see `scheduler.explain.lookahead`)."""

    gang: GangId
    reason: HoldReason
    detail: str
    position: int
    blocked_by: tuple[str, ...] = ()
    expected_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PreemptionRecord:
    """A live attempt is asked to end; `reason` is a sentence."""

    attempt: AttemptId
    gang: GangId
    for_gang: GangId
    reason: str


@dataclass(frozen=True, slots=True)
class BreachRecord:
    """A promise that is withdrawn; `detail` is a sentence."""

    gang: GangId
    cause: BreachCause
    detail: str


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The part of a plan that a store commits; holds are recorded separately."""

    based_on: Version
    place: tuple[Placement, ...] = ()
    preempt: tuple[PreemptionRecord, ...] = ()
    promises: tuple[Promise, ...] = ()
    breaches: tuple[BreachRecord, ...] = ()

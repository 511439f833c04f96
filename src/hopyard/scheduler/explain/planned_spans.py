"""The future that a plan promises: when running gangs are expected to end, and promised gangs to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.domain.cluster import Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, NodeId
from hopyard.scheduler.duration_estimates import estimate_duration
from hopyard.scheduler.explain.lookahead import NO_PROGRESS
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates


@dataclass(frozen=True, slots=True)
class PromisedSpan:
    """A pending gang with a promised start: the latest start, and its expected end after that. nodes: as far
    as they are known."""

    gang: Gang
    start_at: datetime
    end_at: datetime
    nodes: tuple[NodeId, ...]


def expected_ends(
    snapshot: Snapshot, progress: Mapping[GangId, float] = NO_PROGRESS
) -> dict[GangId, datetime]:
    """Returns the expected end of each running gang. progress: the completed part of its work, 0 to 1."""
    estimates = RunEndEstimates.of(
        snapshot.running,
        snapshot.durations,
        snapshot.now,
        grace_s=snapshot.preempt_grace_s,
        progress=progress,
    )
    return {end.gang: snapshot.now + timedelta(seconds=end.mid_s) for end in estimates.ends()}


def promised_spans(snapshot: Snapshot) -> list[PromisedSpan]:
    """Returns the promised gangs by their start, then by ID. A promise that is overdue starts now."""
    pending = {gang.id: gang for gang in snapshot.pending}
    spans = []
    for promise in snapshot.promises.values():
        gang = pending.get(promise.gang)
        if gang is None:
            continue
        start_at = max(promise.start_at, snapshot.now)
        length = timedelta(seconds=estimate_duration(gang, snapshot.durations).mid_s)
        spans.append(PromisedSpan(gang, start_at, start_at + length, promise.nodes))
    return sorted(spans, key=lambda span: (span.start_at, span.gang.id))

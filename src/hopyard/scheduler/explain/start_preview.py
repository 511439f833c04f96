"""Predicts when a gang that is not submitted would start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.duration_text import format_time_until
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId
from hopyard.scheduler.cycle.planner import plan
from hopyard.scheduler.explain.lookahead import NO_PROGRESS
from hopyard.scheduler.explain.why_pending import PendingExplanation, explain_pending


@dataclass(frozen=True, slots=True)
class StartPreview:
    """placement: where the gang would start now. explanation: why it would wait, if it would not."""

    placement: Placement | None
    explanation: PendingExplanation | None

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The nodes on which the gang would start now, by rank, without repetitions."""
        assignments = () if self.placement is None else self.placement.assignments
        return tuple(dict.fromkeys(assignment.node for assignment in assignments))


def preview_start(
    snapshot: Snapshot, gang: Gang, progress: Mapping[GangId, float] = NO_PROGRESS
) -> StartPreview:
    """Returns the start of the gang as the policy would decide it, if the gang were submitted now.

    gang: not in the snapshot. progress: as in `explain_pending`.
    """
    extended = replace(snapshot, pending=(*snapshot.pending, gang), max_placements=0)
    current: Plan = plan(extended)
    placement = next((item for item in current.place if item.gang.id == gang.id), None)
    if placement is not None:
        return StartPreview(placement, None)
    return StartPreview(None, explain_pending(extended, current, gang.id, progress))


def preview_sentence(preview: StartPreview, snapshot: Snapshot) -> str:
    """Returns the preview as a sentence: `starts now on box`, `starts in 12 min, probably`."""
    if preview.placement is not None:
        return f"starts now on {', '.join(preview.nodes)}"
    band = None if preview.explanation is None else preview.explanation.expected
    if band is None:
        return "would wait: no start can be predicted under present conditions"
    wait_s = (band.mid_at - snapshot.now).total_seconds()
    about = format_time_until(wait_s)
    return "starts at the next decision of the scheduler" if about == "now" else f"starts {about}, probably"

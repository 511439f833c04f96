"""Makes what a store keeps of a plan: sentences instead of typed causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import overload

from hopyard.domain.cluster import Breach, Hold, Plan, Preemption
from hopyard.domain.hold_causes import HoldCause
from hopyard.domain.ids import GangId
from hopyard.domain.plan_record import BreachRecord, HoldRecord, PlanRecord, PreemptionRecord
from hopyard.scheduler.explain.breach_messages import breach_message
from hopyard.scheduler.explain.hold_messages import hold_message
from hopyard.scheduler.explain.preemption_messages import preemption_message


def plan_record(plan: Plan) -> PlanRecord:
    """Returns the part of the plan that a store commits."""
    return PlanRecord(
        plan.based_on,
        plan.place,
        tuple(_preemption_record(preemption) for preemption in plan.preempt),
        plan.promises,
        tuple(_breach_record(breach) for breach in plan.breaches),
    )


class HoldRecords(Sequence[HoldRecord]):
    """The records of holds, made when they are read. The holds may be a lazy sequence of a hundred
    thousand. expected_starts: the expected starts that are known."""

    def __init__(self, holds: Sequence[Hold], expected_starts: Mapping[GangId, datetime]) -> None:
        self._holds, self._expected_starts = holds, expected_starts

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[HoldRecord]:
        # Gangs that wait for the same cause share the value, so the sentence is made once for all of them.
        details: dict[int, tuple[HoldCause, str]] = {}
        for hold in self._holds:
            shared = details.get(id(hold.cause))
            if shared is None:
                shared = details[id(hold.cause)] = hold.cause, hold_message(hold.cause)
            yield self._record(hold, shared[1])

    @overload
    def __getitem__(self, index: int, /) -> HoldRecord: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sequence[HoldRecord]: ...
    def __getitem__(self, index: int | slice, /) -> HoldRecord | Sequence[HoldRecord]:
        if isinstance(index, slice):
            return HoldRecords(self._holds[index], self._expected_starts)
        hold = self._holds[index]
        return self._record(hold, hold_message(hold.cause))

    def _record(self, hold: Hold, detail: str) -> HoldRecord:
        return HoldRecord(
            hold.gang,
            hold.reason,
            detail,
            hold.position,
            hold.blocked_by,
            self._expected_starts.get(hold.gang),
        )


def _preemption_record(preemption: Preemption) -> PreemptionRecord:
    return PreemptionRecord(
        preemption.attempt, preemption.gang, preemption.for_gang, preemption_message(preemption.cause)
    )


def _breach_record(breach: Breach) -> BreachRecord:
    return BreachRecord(breach.gang, breach.cause, breach_message(breach.detail))

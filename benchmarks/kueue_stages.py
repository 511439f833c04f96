"""The duration of each step from the end of one gang to the start of its successor."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from benchmarks.waiting_engine import WaitingEngine
from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import AttemptId
from hopyard.domain.plan_record import PlanRecord
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.stores.sql.cluster import SqlClusterStore

STAGES = ("observed", "recorded", "turn_begins", "planned", "applied", "launched")


@dataclass(slots=True)
class _Turn:
    """applied: the commit time of each placement; they are not committed all at once."""

    began: float
    planned: float = 0.0
    applied: list[float] = field(default_factory=list)


class Stages:
    """Wraps policy and store of one measurement, and reads the engine's own times.
    Times are of the monotonic clock."""

    def __init__(self, engine: WaitingEngine, cluster: SqlClusterStore, policy: SchedulingPolicy) -> None:
        self._engine, self._cluster, self._policy = engine, cluster, policy
        self._recorded: dict[AttemptId, float] = {}
        self._turns: list[_Turn] = []
        self._applied: dict[AttemptId, float] = {}

    def __call__(self, snapshot: Snapshot, /) -> Plan:
        plan = self._policy(snapshot)
        self._turns[-1].planned = time.monotonic()
        return plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def snapshot(self, **given: Any) -> Snapshot:
        began = time.monotonic()
        snapshot = await self._cluster.snapshot(**given)
        self._turns.append(_Turn(began))
        return snapshot

    async def record_observation(self, *given: Any, **named: Any) -> Any:
        recorded = await self._cluster.record_observation(*given, **named)
        now = time.monotonic()
        self._recorded.update((ended.attempt, now) for ended in recorded.ended)
        return recorded

    async def apply(self, plan: PlanRecord, /, **given: Any) -> Any:
        result = await self._cluster.apply(plan, **given)
        now = time.monotonic()
        self._turns[-1].applied.extend([now] * len(result.attempts))
        self._applied.update((attempt, now) for attempt in result.attempts)
        return result

    def spans_s(self) -> Mapping[str, list[float]]:
        """Returns the durations by stage for each ended gang; `launched` for each started gang.
        The successor of a gang counts as applied at the mean commit time of the placements of its cycle."""
        found: dict[str, list[float]] = {stage: [] for stage in STAGES}
        whole = [turn for turn in self._turns if turn.applied]
        begins = [turn.began for turn in whole]
        for attempt, (ended, observed) in self._engine.ends.items():
            recorded = self._recorded[attempt]
            at = bisect_left(begins, recorded)
            if at == len(whole):  # nothing waits any more
                continue
            turn = whole[at]
            times = (ended, observed, recorded, turn.began, turn.planned, fmean(turn.applied))
            for stage, before, after in zip(STAGES, times, times[1:], strict=False):
                found[stage].append(after - before)
        for launch, at_s in zip(self._engine.launches, self._engine.launched_at, strict=True):
            found["launched"].append(at_s - self._applied[launch.attempt])
        return found


def stage_lines(spans_s: Mapping[str, list[float]]) -> list[str]:
    """A line per stage."""
    return [f"{stage}: {_distribution(spans)}" for stage, spans in spans_s.items() if spans]


def _distribution(spans_s: list[float]) -> str:
    ms = sorted(span * 1000 for span in spans_s)
    parts = ", ".join(
        f"p{part} {ms[min(len(ms) * part // 100, len(ms) - 1)]:.1f}" for part in (10, 50, 90, 99)
    )
    return f"mean {fmean(ms):.1f} ms, {parts}, most {ms[-1]:.1f}"

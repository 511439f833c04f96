"""An engine whose runs only wait, in real time, so that a measurement covers only the controller, the policy
and the store."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.launch import Launch
from hopyard.domain.replica import StopOrder

FINISHED = Exit(ExitKind.EXIT_CODE, 0, "finished")
PREEMPTED = Exit(ExitKind.PREEMPTED, 143, "asked to make room")
STOPPED = Exit(ExitKind.STOPPED, 143, "stopped by request")


@dataclass(slots=True)
class _Waiting:
    replicas: tuple[ReplicaStatus, ...]
    ends_at: float
    status: AttemptStatus
    over: bool = False


class WaitingEngine:
    """Implements `hopyard.interfaces.engine.Engine` and `ChangeNotifier`. A run ends by itself after waiting
    its parameter `runs_s` seconds in total. A preempted run saves its waited time, at no cost.
    launches, launched_at: every started gang and its time. ends: the end times of runs that ended by
    themselves, and when each was observed; by the monotonic clock."""

    name = "waiting"

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(nodes)
        self._attempts: dict[AttemptId, _Waiting] = {}
        self._left_s: dict[RunId, float] = {}  # of runs that were preempted
        self.launches: list[Launch] = []
        self.launched_at: list[float] = []
        self.ends: dict[AttemptId, tuple[float, float]] = {}
        self._ends: list[tuple[float, AttemptId]] = []  # a heap; includes stopped runs
        self._changed = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    async def launch(self, launch: Launch, /) -> None:
        if launch.attempt in self._attempts:
            return
        self.launches.append(launch)
        self.launched_at.append(time.monotonic())
        replicas = _all(len(launch.replicas), None)
        run = split_attempt(launch.attempt)[0]
        ends_at = time.monotonic() + self._left_s.pop(run, float(launch.replicas[0].params["runs_s"] or 0))
        self._attempts[launch.attempt] = _Waiting(replicas, ends_at, AttemptStatus(launch.attempt, replicas))
        heapq.heappush(self._ends, (ends_at, launch.attempt))
        if self._ends[0][1] == launch.attempt:
            self._set_alarm()

    # nothing here takes long
    async def stop(self, attempt: AttemptId, order: StopOrder, /) -> None:
        found = self._attempts.get(attempt)
        if found is not None and not found.over:
            self._left_s[split_attempt(attempt)[0]] = max(found.ends_at - time.monotonic(), 0.0)
            self._end(attempt, found, PREEMPTED if order.requests_checkpoint else STOPPED)
            self._changed.set()

    async def observe(self) -> Observation:
        now = time.monotonic()
        while self._ends and self._ends[0][0] <= now:
            attempt = heapq.heappop(self._ends)[1]
            found = self._attempts.get(attempt)
            if found is not None and not found.over:
                self.ends[attempt] = found.ends_at, now
                self._end(attempt, found, FINISHED)
        self._set_alarm()
        return Observation(self._nodes, tuple(found.status for found in self._attempts.values()))

    async def forget(self, attempt: AttemptId, /) -> None:
        self._attempts.pop(attempt, None)

    async def wait_for_change(self) -> None:
        """Waits until a run has ended since the last observation."""
        await self._changed.wait()
        self._changed.clear()

    def _set_alarm(self) -> None:
        """For the next end."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._ends:
            wait_s = max(self._ends[0][0] - time.monotonic(), 0.0)
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._changed.set)

    def _end(self, attempt: AttemptId, found: _Waiting, exit: Exit) -> None:
        found.over = True
        found.status = AttemptStatus(attempt, _all(len(found.replicas), exit))


@cache
def _all(size: int, exit: Exit | None) -> tuple[ReplicaStatus, ...]:
    phase = ReplicaPhase.RUNNING if exit is None else ReplicaPhase.EXITED
    return tuple(ReplicaStatus(rank, phase, exit=exit) for rank in range(size))

"""An engine whose runs only take time. How long, is known to it alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, Digest, NodeId, RunId
from hopyard.domain.launch import Launch
from hopyard.errors import LaunchFailed
from hopyard.interfaces.clock import Clock
from hopyard.simulator.agenda import Agenda, Happening
from hopyard.simulator.settings import Costs

FINISHED = Exit(ExitKind.EXIT_CODE, 0, "finished")
MADE_ROOM = Exit(ExitKind.PREEMPTED, 143, "saved a checkpoint and made room for another run")
KILLED = Exit(ExitKind.PREEMPTED, 137, "made room for another run, before it had saved a checkpoint")
STOPPED = Exit(ExitKind.STOPPED, 143, "stopped by request")
OVER_TIME = Exit(ExitKind.TIME_LIMIT, 143, "its time limit was over")
NODE_GONE = Exit(ExitKind.LOST, 1, "its node was lost")
NOTHING = Digest("0" * 64)  # what a simulated checkpoint holds
_US = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run really is: how long it computes when all its `replicas` do."""

    takes: timedelta
    replicas: int


@dataclass(slots=True)
class Live:
    """An attempt that the engine knows. began_with, saved: computing that the checkpoint holds from which it
    started, and that the newest one holds. computes_at: when it goes on from `saved`, after it was started
    and restored. rate: computing per time, below 1 for an elastic gang that is smaller than it asked.
    ends_with: set once it is over. turn: counts what was planned for it, so that older plans are void."""

    launch: Launch
    placed_at: datetime
    computes_at: datetime
    began_with: timedelta
    saved: timedelta
    rate: float
    phase: ReplicaPhase = ReplicaPhase.PREPARING
    saving: bool = False
    ends_with: Exit | None = None
    turn: int = 0
    statuses: tuple[ReplicaStatus, ...] = ()

    @property
    def run(self) -> RunId:
        return self.launch.replicas[0].run

    @property
    def placement(self) -> Placement:
        return self.launch.placement

    def done(self, now: datetime) -> timedelta:
        """Computing so far, in all attempts, if it could be saved now."""
        return self.saved + max(now - self.computes_at, timedelta(0)) * self.rate

    def say(self) -> None:
        """Its replicas are where it is."""
        self.statuses = tuple(
            ReplicaStatus(rank, self.phase, exit=self.ends_with)
            for rank in range(len(self.placement.assignments))
        )


class Hears(Protocol):
    """What the engine tells of its attempts as it happens.
    `started` and `ended` are told before anybody else hears of it."""

    async def status(self, attempt: AttemptId, status: ReplicaStatus) -> None: ...
    async def checkpoint(self, checkpoint: Checkpoint) -> None: ...
    async def nodes_changed(self) -> None: ...
    def started(self, live: Live) -> None: ...
    def ended(self, live: Live, kept: timedelta) -> None:
        """kept: computing of this attempt that need not be done again."""


class TimeEngine:
    """Implements `hopyard.interfaces.engine.Engine`.

    works: what each run really is. A checkpoint's step is the computing that it holds, in microseconds, so
    that what is resumed is what the store remembered.
    """

    def __init__(
        self,
        clock: Clock,
        agenda: Agenda,
        nodes: Sequence[Node],
        works: Mapping[RunId, Work],
        costs: Costs,
        hears: Hears,
    ) -> None:
        self._clock, self._agenda, self._works, self._hears = clock, agenda, works, hears
        self._nodes = {node.id: node for node in nodes}
        self._start, self._save = timedelta(seconds=costs.start_s), timedelta(seconds=costs.save_s)
        self._restore, self._every = (
            timedelta(seconds=costs.restore_s),
            timedelta(seconds=costs.checkpoint_every_s),
        )
        self._seen = tuple(nodes)  # the same object until a node changes
        self._known: dict[AttemptId, Live] = {}

    @property
    def name(self) -> str:
        return "simulated"

    async def launch(self, launch: Launch, /) -> None:
        if launch.attempt in self._known:
            return
        gone = [a.node for a in launch.placement.assignments if not self._nodes[a.node].ready]
        if gone:
            raise LaunchFailed(f"node {gone[0]} was lost")
        first, now = launch.replicas[0], self._clock.now()
        saved = timedelta(0) if first.restore is None else first.restore.step * _US
        computes_at = now + self._start + (self._restore if saved else timedelta(0))
        live = self._known[launch.attempt] = Live(
            launch,
            now,
            computes_at,
            saved,
            saved,
            len(launch.placement.assignments) / self._works[first.run].replicas,
        )
        live.say()
        self._hears.started(live)
        self._agenda.at(now + self._start, self._when(live, self._begin))

    async def stop(self, attempt: AttemptId, /, *, grace: timedelta, preempt: bool = False) -> None:
        live, now = self._known.get(attempt), self._clock.now()
        if live is None or live.ends_with is not None or (preempt and live.saving):
            return
        if not preempt:
            self._plan(live, now, lambda: self._end(live, STOPPED))
        elif now <= live.computes_at:  # nothing new to save
            self._plan(live, now, lambda: self._end(live, MADE_ROOM))
        elif self._ends_at(live) > now + min(self._save, grace):
            done, live.saving = live.done(now), True
            if self._save <= grace:
                self._plan(live, now + self._save, lambda: self._make_room(live, done))
            else:
                self._plan(live, now + grace, lambda: self._end(live, KILLED))

    async def observe(self) -> Observation:
        return Observation(
            self._seen, tuple(AttemptStatus(attempt, live.statuses) for attempt, live in self._known.items())
        )

    async def forget(self, attempt: AttemptId, /) -> None:
        self._known.pop(attempt, None)

    async def lose_node(self, node: NodeId) -> None:
        """The machine is gone, and every gang with a replica on it."""
        self._set_ready(node, False)
        hit = [
            live
            for live in self._known.values()
            if live.ends_with is None and any(a.node == node for a in live.placement.assignments)
        ]
        for live in hit:
            self._finish(live, NODE_GONE)
        await self._hears.nodes_changed()
        for live in hit:
            await self._tell(live)

    async def return_node(self, node: NodeId) -> None:
        self._set_ready(node, True)
        await self._hears.nodes_changed()

    def _set_ready(self, node: NodeId, ready: bool) -> None:
        self._nodes[node] = replace(self._nodes[node], ready=ready)
        self._seen = tuple(self._nodes.values())

    # -- a run's life
    # -----------------------------------------------------------------------------------------------

    def _when(self, live: Live, what: Callable[[Live], Awaitable[None]]) -> Happening:
        """Do it, unless something else was planned for the attempt meanwhile."""
        turn = live.turn

        async def happen() -> None:
            if live.turn == turn and live.ends_with is None:
                await what(live)

        return happen

    def _plan(self, live: Live, at: datetime, what: Happening) -> None:
        """In the place of what was planned before."""
        live.turn += 1
        self._agenda.at(at, self._when(live, lambda _: what()))

    async def _begin(self, live: Live) -> None:
        live.phase = ReplicaPhase.RUNNING
        live.say()
        self._go_on(live)
        await self._tell(live)

    def _go_on(self, live: Live) -> None:
        """Until its next own checkpoint, its time limit, or its end."""
        ends_at, limit_s = self._ends_at(live), live.launch.replicas[0].time_limit_s
        limit_at = None if limit_s is None else live.placed_at + self._start + timedelta(seconds=limit_s)
        save_at = max(live.computes_at, self._clock.now()) + self._every if self._every else None
        if save_at is not None and save_at < ends_at and (limit_at is None or save_at < limit_at):
            self._agenda.at(save_at, self._when(live, self._save_by_itself))
        elif limit_at is not None and limit_at < ends_at:
            self._agenda.at(limit_at, self._when(live, lambda one: self._end(one, OVER_TIME)))
        else:
            self._agenda.at(ends_at, self._when(live, lambda one: self._end(one, FINISHED)))

    def _ends_at(self, live: Live) -> datetime:
        return live.computes_at + max(self._works[live.run].takes - live.saved, timedelta(0)) / live.rate

    async def _save_by_itself(self, live: Live) -> None:
        await self._write(live, live.done(self._clock.now()))
        live.computes_at = self._clock.now()
        self._go_on(live)

    async def _make_room(self, live: Live, done: timedelta) -> None:
        await self._write(live, done)
        live.computes_at = self._clock.now()
        await self._end(live, MADE_ROOM)

    async def _write(self, live: Live, done: timedelta) -> None:
        """A checkpoint that holds `done`."""
        live.saved = done
        await self._hears.checkpoint(
            Checkpoint(live.run, live.launch.attempt, 0, done // _US, NOTHING, 0, self._clock.now())
        )

    async def _end(self, live: Live, exit: Exit) -> None:
        self._finish(live, exit)
        await self._tell(live)

    def _finish(self, live: Live, exit: Exit) -> None:
        live.phase, live.ends_with = ReplicaPhase.EXITED, exit
        live.say()
        final = exit.kind in (ExitKind.EXIT_CODE, ExitKind.TIME_LIMIT)
        self._hears.ended(live, (live.done(self._clock.now()) if final else live.saved) - live.began_with)

    async def _tell(self, live: Live) -> None:
        for status in live.statuses:
            await self._hears.status(live.launch.attempt, status)

"""An engine whose runs only take time. No other component knows how long."""

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
from hopyard.domain.replica import StopOrder
from hopyard.errors import LaunchFailed
from hopyard.interfaces.clock import Clock
from hopyard.simulator.event_queue import EventAction, EventQueue
from hopyard.simulator.settings import TimeCosts

FINISHED = Exit(ExitKind.EXIT_CODE, 0, "finished")
PREEMPTED = Exit(ExitKind.PREEMPTED, 143, "saved a checkpoint and made room for another run")
KILLED = Exit(ExitKind.PREEMPTED, 137, "made room for another run, before it had saved a checkpoint")
STOPPED = Exit(ExitKind.STOPPED, 143, "stopped by request")
TIME_LIMIT_REACHED = Exit(ExitKind.TIME_LIMIT, 143, "its time limit was over")
NODE_LOST = Exit(ExitKind.LOST, 1, "its node was lost")
EMPTY_MANIFEST = Digest("0" * 64)  # the content of a simulated checkpoint
_US = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """The true duration of a run: how long it computes with all its `replicas`."""

    duration: timedelta
    replicas: int


@dataclass(slots=True)
class SimulatedAttempt:
    """An attempt that the engine knows. restored_work, saved_work: the work in the checkpoint from which it
    started, and in its newest checkpoint. computes_at: when it resumes from `saved_work`, after start and
    restore. rate: work per time, below 1 for an elastic gang that is smaller than requested. pending_exit:
    set once it is over. event_number: counts its planned events, so that older ones are void."""

    launch: Launch
    placed_at: datetime
    computes_at: datetime
    restored_work: timedelta
    saved_work: timedelta
    rate: float
    phase: ReplicaPhase = ReplicaPhase.PREPARING
    is_saving: bool = False
    pending_exit: Exit | None = None
    event_number: int = 0
    statuses: tuple[ReplicaStatus, ...] = ()

    @property
    def run_id(self) -> RunId:
        return self.launch.replicas[0].run

    @property
    def placement(self) -> Placement:
        return self.launch.placement

    def work_done(self, now: datetime) -> timedelta:
        """Returns the computing so far, in all attempts, if it could be saved now."""
        return self.saved_work + max(now - self.computes_at, timedelta(0)) * self.rate

    def update_statuses(self) -> None:
        """Gives all replicas the phase and the exit of the attempt."""
        self.statuses = tuple(
            ReplicaStatus(rank, self.phase, exit=self.pending_exit)
            for rank in range(len(self.placement.assignments))
        )


class EngineListener(Protocol):
    """Receives the events of attempts as they happen. `on_started` and `on_ended` are called before any other
    listener learns of it."""

    async def on_status(self, attempt: AttemptId, status: ReplicaStatus) -> None: ...
    async def on_checkpoint(self, checkpoint: Checkpoint) -> None: ...
    async def on_nodes_changed(self) -> None: ...
    def on_started(self, attempt: SimulatedAttempt) -> None: ...
    def on_ended(self, attempt: SimulatedAttempt, saved_work: timedelta) -> None:
        """saved_work: computing of this attempt that need not be done again."""


class SimulatedEngine:
    """Implements `hopyard.interfaces.engine.Engine`.

    work_of_run: the true work of each run. The step of a checkpoint is the computing that it holds, in
    microseconds, so that a run resumes from what the store recorded.
    """

    def __init__(
        self,
        clock: Clock,
        events: EventQueue,
        nodes: Sequence[Node],
        work_of_run: Mapping[RunId, SimulatedWork],
        costs: TimeCosts,
        listener: EngineListener,
    ) -> None:
        self._clock, self._events, self._work_of_run, self._listener = clock, events, work_of_run, listener
        self._nodes = {node.id: node for node in nodes}
        self._start_time, self._save_time = timedelta(seconds=costs.start_s), timedelta(seconds=costs.save_s)
        self._restore_time, self._checkpoint_interval = (
            timedelta(seconds=costs.restore_s),
            timedelta(seconds=costs.checkpoint_every_s),
        )
        self._node_view = tuple(nodes)  # the same object until a node changes
        self._attempts: dict[AttemptId, SimulatedAttempt] = {}

    @property
    def name(self) -> str:
        return "simulated"

    async def launch(self, launch: Launch, /) -> None:
        if launch.attempt in self._attempts:
            return
        lost_nodes = [
            assignment.node
            for assignment in launch.placement.assignments
            if not self._nodes[assignment.node].ready
        ]
        if lost_nodes:
            raise LaunchFailed(f"node {lost_nodes[0]} was lost")
        replica, now = launch.replicas[0], self._clock.now()
        saved = timedelta(0) if replica.restore is None else replica.restore.step * _US
        computes_at = now + self._start_time + (self._restore_time if saved else timedelta(0))
        state = self._attempts[launch.attempt] = SimulatedAttempt(
            launch,
            now,
            computes_at,
            saved,
            saved,
            len(launch.placement.assignments) / self._work_of_run[replica.run].replicas,
        )
        state.update_statuses()
        self._listener.on_started(state)
        self._events.schedule(now + self._start_time, self._unless_replanned(state, self._start_computing))

    async def stop(self, attempt: AttemptId, order: StopOrder, /) -> None:
        state, now = self._attempts.get(attempt), self._clock.now()
        grace, preempt = timedelta(seconds=order.grace_s), order.requests_checkpoint
        if state is None or state.pending_exit is not None or (preempt and state.is_saving):
            return
        if not preempt:
            self._schedule(state, now, lambda: self._end(state, STOPPED))
        elif now <= state.computes_at:  # nothing new to save
            self._schedule(state, now, lambda: self._end(state, PREEMPTED))
        elif self._expected_end(state) > now + min(self._save_time, grace):
            work, state.is_saving = state.work_done(now), True
            if self._save_time <= grace:
                self._schedule(state, now + self._save_time, lambda: self._save_and_preempt(state, work))
            else:
                self._schedule(state, now + grace, lambda: self._end(state, KILLED))

    async def observe(self) -> Observation:
        return Observation(
            self._node_view,
            tuple(AttemptStatus(attempt, state.statuses) for attempt, state in self._attempts.items()),
        )

    async def forget(self, attempt: AttemptId, /) -> None:
        self._attempts.pop(attempt, None)

    async def lose_node(self, node: NodeId) -> None:
        """Marks a machine as lost, and ends every gang with a replica on it."""
        self._set_ready(node, False)
        affected = [
            state
            for state in self._attempts.values()
            if state.pending_exit is None
            and any(assignment.node == node for assignment in state.placement.assignments)
        ]
        for state in affected:
            self._finish(state, NODE_LOST)
        await self._listener.on_nodes_changed()
        for state in affected:
            await self._notify_status(state)

    async def return_node(self, node: NodeId) -> None:
        self._set_ready(node, True)
        await self._listener.on_nodes_changed()

    def _set_ready(self, node: NodeId, ready: bool) -> None:
        self._nodes[node] = replace(self._nodes[node], ready=ready)
        self._node_view = tuple(self._nodes.values())

    # -- life cycle -----------------------------------------------------------------------------------------

    def _unless_replanned(
        self, state: SimulatedAttempt, action: Callable[[SimulatedAttempt], Awaitable[None]]
    ) -> EventAction:
        """Returns an event that runs the action, unless another event was planned for the attempt
        meanwhile."""
        event_number = state.event_number

        async def run_action() -> None:
            if state.event_number == event_number and state.pending_exit is None:
                await action(state)

        return run_action

    def _schedule(self, state: SimulatedAttempt, at: datetime, action: EventAction) -> None:
        """Plans an action in place of the events planned before."""
        state.event_number += 1
        self._events.schedule(at, self._unless_replanned(state, lambda _: action()))

    async def _start_computing(self, state: SimulatedAttempt) -> None:
        state.phase = ReplicaPhase.RUNNING
        state.update_statuses()
        self._schedule_next(state)
        await self._notify_status(state)

    def _schedule_next(self, state: SimulatedAttempt) -> None:
        """Plans the next periodic checkpoint, the time limit, or the end."""
        ends_at, limit_s = self._expected_end(state), state.launch.replicas[0].time_limit_s
        limit_at = (
            None if limit_s is None else state.placed_at + self._start_time + timedelta(seconds=limit_s)
        )
        save_at = (
            max(state.computes_at, self._clock.now()) + self._checkpoint_interval
            if self._checkpoint_interval
            else None
        )
        if save_at is not None and save_at < ends_at and (limit_at is None or save_at < limit_at):
            self._events.schedule(save_at, self._unless_replanned(state, self._save_periodic))
        elif limit_at is not None and limit_at < ends_at:
            self._events.schedule(
                limit_at,
                self._unless_replanned(state, lambda attempt: self._end(attempt, TIME_LIMIT_REACHED)),
            )
        else:
            self._events.schedule(
                ends_at, self._unless_replanned(state, lambda attempt: self._end(attempt, FINISHED))
            )

    def _expected_end(self, state: SimulatedAttempt) -> datetime:
        return (
            state.computes_at
            + max(self._work_of_run[state.run_id].duration - state.saved_work, timedelta(0)) / state.rate
        )

    async def _save_periodic(self, state: SimulatedAttempt) -> None:
        await self._save_checkpoint(state, state.work_done(self._clock.now()))
        state.computes_at = self._clock.now()
        self._schedule_next(state)

    async def _save_and_preempt(self, state: SimulatedAttempt, done: timedelta) -> None:
        await self._save_checkpoint(state, done)
        state.computes_at = self._clock.now()
        await self._end(state, PREEMPTED)

    async def _save_checkpoint(self, state: SimulatedAttempt, done: timedelta) -> None:
        """Records a checkpoint that holds `done`."""
        state.saved_work = done
        await self._listener.on_checkpoint(
            Checkpoint(
                state.run_id, state.launch.attempt, 0, done // _US, EMPTY_MANIFEST, 0, self._clock.now()
            )
        )

    async def _end(self, state: SimulatedAttempt, exit: Exit) -> None:
        self._finish(state, exit)
        await self._notify_status(state)

    def _finish(self, state: SimulatedAttempt, exit: Exit) -> None:
        state.phase, state.pending_exit = ReplicaPhase.EXITED, exit
        state.update_statuses()
        final = exit.kind in (ExitKind.EXIT_CODE, ExitKind.TIME_LIMIT)
        self._listener.on_ended(
            state, (state.work_done(self._clock.now()) if final else state.saved_work) - state.restored_work
        )

    async def _notify_status(self, state: SimulatedAttempt) -> None:
        for status in state.statuses:
            await self._listener.on_status(state.launch.attempt, status)

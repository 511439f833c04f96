"""An engine whose replicas exist in memory only and follow a script. It outlives the controllers that use
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.ids import AttemptId, NodeId, split_attempt
from hopyard.domain.launch import Launch
from hopyard.domain.replica import StopOrder
from hopyard.domain.resources import WHOLE_GPU
from hopyard.errors import LaunchFailed
from hopyard.interfaces.clock import Clock

FINISHED = Exit(ExitKind.EXIT_CODE, 0, "finished")
STOPPED = Exit(ExitKind.STOPPED, 143, "stopped by request")
PREEMPTED = Exit(ExitKind.PREEMPTED, 75, "preempted")


@dataclass(frozen=True, slots=True)
class ReplicaScript:
    """The behaviour of a replica: it prepares, runs and exits like this, unless it is stopped before.

    fails_launch: the launch of its attempt fails. ignores_stop: it uses the whole grace of a stop. save_time:
    the duration of a checkpoint when it is preempted (at most the grace).
    """

    prepare_time: timedelta = timedelta(seconds=1)
    run_time: timedelta = timedelta(seconds=10)
    exit: Exit = FINISHED
    fails_launch: bool = False
    ignores_stop: bool = False
    save_time: timedelta = timedelta(0)


@dataclass(slots=True)
class _FakeReplica:
    script: ReplicaScript
    launched_at: datetime
    stop_at: datetime | None = None  # when it ends because of a requested stop
    preempted: bool = False

    def status(self, rank: int, now: datetime) -> ReplicaStatus:
        running_at = self.launched_at + self.script.prepare_time
        ends_at = running_at + self.script.run_time
        if self.stop_at is not None and self.stop_at < ends_at and now >= self.stop_at:
            return ReplicaStatus(rank, ReplicaPhase.EXITED, exit=PREEMPTED if self.preempted else STOPPED)
        if now >= ends_at:
            return ReplicaStatus(rank, ReplicaPhase.EXITED, exit=self.script.exit)
        return ReplicaStatus(rank, ReplicaPhase.RUNNING if now >= running_at else ReplicaPhase.PREPARING)


@dataclass(slots=True)
class FakeEngine:
    """Implements `hopyard.interfaces.engine.Engine`.

    script_of: the behaviour of a replica, by attempt and rank. started_attempts: every attempt that was
    actually started, in order. stops: each call of `stop`.
    """

    clock: Clock
    nodes: Sequence[Node]
    script_of: Callable[[AttemptId, int], ReplicaScript] = lambda _attempt, _rank: ReplicaScript()
    name: str = "fake"
    started_attempts: list[AttemptId] = field(default_factory=list)
    launches: dict[AttemptId, Launch] = field(default_factory=dict)
    forgotten: list[AttemptId] = field(default_factory=list)
    stops: list[tuple[AttemptId, StopOrder]] = field(default_factory=list)
    _replicas: dict[AttemptId, list[_FakeReplica]] = field(default_factory=dict)

    async def launch(self, launch: Launch, /) -> None:
        if launch.attempt in self._replicas:
            return
        scripts = [self.script_of(launch.attempt, replica.rank) for replica in launch.replicas]
        if any(script.fails_launch for script in scripts):
            raise LaunchFailed("the engine refuses this attempt")
        now = self.clock.now()
        self.launches[launch.attempt] = launch
        self.started_attempts.append(launch.attempt)
        self._replicas[launch.attempt] = [_FakeReplica(script, now) for script in scripts]
        self._check()

    async def stop(self, attempt: AttemptId, order: StopOrder, /) -> None:
        now, grace, preempt = self.clock.now(), timedelta(seconds=order.grace_s), order.requests_checkpoint
        self.stops.append((attempt, order))
        for replica in self._replicas.get(attempt, ()):
            shortest = min(replica.script.save_time, grace) if preempt else timedelta(0)
            stop_at = now + (grace if replica.script.ignores_stop else shortest)
            if replica.stop_at is None:
                replica.preempted = preempt
            elif now < replica.stop_at:
                replica.preempted = replica.preempted and preempt
            replica.stop_at = min(stop_at, replica.stop_at or stop_at)

    async def observe(self) -> Observation:
        return Observation(tuple(self.nodes), tuple(self.status(attempt) for attempt in self._replicas))

    async def forget(self, attempt: AttemptId, /) -> None:
        if attempt in self._replicas:
            del self._replicas[attempt]
            self.forgotten.append(attempt)

    def status(self, attempt: AttemptId) -> AttemptStatus:
        """Returns the current status of a known attempt."""
        now = self.clock.now()
        return AttemptStatus(
            attempt, tuple(replica.status(rank, now) for rank, replica in enumerate(self._replicas[attempt]))
        )

    def live_attempts(self) -> list[AttemptId]:
        """Returns the attempts with a replica that has not exited."""
        return [
            attempt
            for attempt in self._replicas
            if any(replica.phase is not ReplicaPhase.EXITED for replica in self.status(attempt).replicas)
        ]

    def lose_attempt(self, attempt: AttemptId) -> None:
        """Removes every trace of an attempt, as after the loss of its machine's disk."""
        self._replicas.pop(attempt, None)

    def _check(self) -> None:
        """Raises AssertionError if a node is over-committed, or a run is started twice."""
        live = self.live_attempts()
        runs = [split_attempt(attempt)[0] for attempt in live]
        if len(set(runs)) != len(runs):
            raise AssertionError(f"a run is started twice: {live}")
        usage: dict[NodeId, list[int]] = {node.id: [0, 0] for node in self.nodes}
        gpus: Counter[tuple[NodeId, int]] = Counter()
        extras: Counter[tuple[NodeId, str]] = Counter()
        for attempt in live:
            placement = self.launches[attempt].placement
            for (_, role), assignment in zip(
                placement.gang.replica_roles(), placement.assignments, strict=True
            ):
                usage[assignment.node][0] += role.resources.cpu_milli
                usage[assignment.node][1] += role.resources.memory_bytes
                if len(set(assignment.gpus)) != (1 if role.resources.is_gpu_share else role.resources.gpus):
                    raise AssertionError(f"the number of GPUs differs from the request: {attempt}")
                for index in assignment.gpus:
                    gpus[assignment.node, index] += assignment.gpu_milli
                for name, count in role.resources.extras:
                    extras[assignment.node, name] += count
        for node in self.nodes:
            cpu, memory = usage[node.id]
            if cpu > node.cpu_milli or memory > node.memory_bytes:
                raise AssertionError(
                    f"node {node.id} is over-committed: {cpu} of {node.cpu_milli} mCPU, {memory} of "
                    f"{node.memory_bytes} B"
                )
            if any(gpus[node.id, gpu.index] > WHOLE_GPU for gpu in node.gpus):
                raise AssertionError(f"a GPU of node {node.id} is over-committed: {gpus}")
            if any(
                count > node.extras.get(name, 0)
                for (node_id, name), count in extras.items()
                if node_id == node.id
            ):
                raise AssertionError(f"an extra resource of node {node.id} is over-committed: {extras}")

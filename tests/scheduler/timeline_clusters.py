"""Small clusters of GPUs whose runs take exactly as long as their time limit, and a simulation of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from hopyard.domain.breach_causes import PriorityPrecedence
from hopyard.domain.cluster import Breach, Node, Promise, Running, Snapshot
from hopyard.domain.gang import ANY_NODE, Gang, NodeSelector, Placement, Role
from hopyard.domain.ids import DEFAULT_QUEUE, AttemptId, GangId, NodeId, PoolName, QueueName, Version
from hopyard.domain.queue import SINGLE_QUEUE_TREE, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.duration_estimates import estimate_duration
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.timeline.backfill import BackfillTimeline
from hopyard.scheduler.timeline.reservation_preemption import preempt_for_reservations
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates

T0 = datetime(2030, 1, 1, tzinfo=UTC)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def machine(name: str, gpus: int, *, pool: str = "default", cpus: int = 1000, model: str = "A100") -> Node:
    return Node(
        NodeId(name), "local", 1000 * cpus, 2**40, tuple(Gpu(i, model) for i in range(gpus)), PoolName(pool)
    )


def priority_rule(other: Placement, gang: Gang) -> PriorityPrecedence:
    """A rule by which every placed run has priority."""
    return PriorityPrecedence(other.gang.id, 1, 0)


def limited_gang(
    name: str,
    gpus: int = 1,
    *,
    replicas: int = 1,
    min_replicas: int = 0,
    limit_s: float | None = 100.0,
    user: str = "ada",
    at_s: float = 0,
    queue: QueueName = DEFAULT_QUEUE,
    preemptible: bool = True,
    where: NodeSelector = ANY_NODE,
    cpus: float = 1,
) -> Gang:
    role = Role("worker", replicas, Resources(int(1000 * cpus), 0, gpus), min_replicas, where)
    return Gang(GangId(name), (role,), T0 + seconds(at_s), queue, 0, user, None, limit_s, "", preemptible)


def snapshot(
    nodes: Sequence[Node],
    running: Sequence[Running] = (),
    pending: Sequence[Gang] = (),
    *,
    now: datetime = T0,
    reservations: Sequence[Reservation] = (),
    queues: QueueTree = SINGLE_QUEUE_TREE,
    promises: Mapping[GangId, Promise] | None = None,
    durations: Mapping[str, tuple[float, ...]] | None = None,
) -> Snapshot:
    return Snapshot(
        Version(1),
        now,
        {node.id: node for node in nodes},
        tuple(pending),
        tuple(running),
        queues,
        {},
        tuple(reservations),
        promises or {},
        durations or {},
    )


def running_attempt(placement: Placement, since: datetime = T0) -> Running:
    return Running(placement, since, AttemptId(f"{placement.gang.id}.1"), since)


@st.composite
def clusters(draw: st.DrawFn, *, max_count: int = 3) -> list[Node]:
    return [machine(f"n{i}", draw(st.integers(1, 4))) for i in range(draw(st.integers(1, max_count)))]


@st.composite
def gangs(
    draw: st.DrawFn, nodes: Sequence[Node], prefix: str, *, max_count: int, spread_s: int = 0
) -> list[Gang]:
    """Gangs that fit the empty cluster."""
    fitting = []
    for i in range(draw(st.integers(0, max_count))):
        gang = limited_gang(
            f"{prefix}{i}",
            draw(st.integers(1, 3)),
            replicas=draw(st.sampled_from([1, 1, 2, 3])),
            limit_s=10.0 * draw(st.integers(1, 12)),
            user=draw(st.sampled_from(["ada", "bob"])),
            at_s=draw(st.integers(0, spread_s)),
        )
        if Capacity.of(nodes).place(gang) is not None:
            fitting.append(gang)
    return fitting


@st.composite
def running_gangs(draw: st.DrawFn, nodes: Sequence[Node]) -> list[Running]:
    """Gangs that were placed one after the other and have run for some time."""
    capacity, running = Capacity.of(nodes), []
    for gang in draw(gangs(nodes, "old", max_count=6)):
        placement = capacity.place(gang)
        if placement is not None:
            capacity.allocate(placement)
            assert gang.time_limit_s is not None
            running.append(
                running_attempt(placement, T0 - seconds(draw(st.integers(0, int(gang.time_limit_s) - 1))))
            )
    return running


def end_s(running: Running, now: datetime = T0) -> float:
    """Returns the seconds from now until a run reaches its time limit."""
    assert running.gang.time_limit_s is not None and running.started_at is not None
    return (running.started_at - now).total_seconds() + running.gang.time_limit_s


@dataclass
class TimelineSimulation:
    """A cluster that is simulated cycle by cycle: first come, first served, with promises to the first few
    pending gangs.

    duration_s: how long a run takes if not as long as its limit. started, first_promised: when, by gang.
    """

    nodes: list[Node]
    now: datetime = T0
    max_promises: int = 3
    running: dict[GangId, Running] = field(default_factory=dict)
    pending: list[Gang] = field(default_factory=list)
    reservations: tuple[Reservation, ...] = ()
    durations: dict[str, tuple[float, ...]] = field(default_factory=dict)
    duration_s: dict[GangId, float] = field(default_factory=dict)
    promises: dict[GangId, Promise] = field(default_factory=dict)
    breaches: list[Breach] = field(default_factory=list)
    started: dict[GangId, datetime] = field(default_factory=dict)
    first_promised: dict[GangId, Promise] = field(default_factory=dict)

    def ends_at(self, running: Running) -> datetime:
        assert running.started_at is not None
        return running.started_at + seconds(
            self.duration_s.get(running.gang.id, running.gang.time_limit_s or 0.0)
        )

    def run_cycle(self) -> None:
        self.running = {name: run for name, run in self.running.items() if self.ends_at(run) > self.now}
        current = snapshot(
            self.nodes,
            list(self.running.values()),
            now=self.now,
            reservations=self.reservations,
            durations=self.durations,
        )
        run_ends = RunEndEstimates.of(current.running, current.durations, current.now)
        for preemption in preempt_for_reservations(
            self.reservations, run_ends, current.nodes, current.queues, self.now, grace_s=60.0
        ).preemptions:
            stopping = self.running[preemption.gang]
            self.running[preemption.gang] = replace(stopping, stopping=True)
            self.duration_s[preemption.gang] = 0.0  # it ends before the next cycle
        timeline = BackfillTimeline.of(replace(current, running=tuple(self.running.values())))
        before, self.promises = self.promises, {}
        order = list(before)
        # due promises come first, as in a cycle: their capacity is not for other gangs that could start early
        promised = sorted(
            (gang for gang in self.pending if gang.id in before),
            key=lambda gang: (before[gang.id].start_at > self.now, order.index(gang.id)),
        )
        rest = [gang for gang in self.pending if gang.id not in before]
        timeline.renew_promises(
            [(gang, estimate_duration(gang, self.durations), before[gang.id]) for gang in promised]
        )
        for gang in promised:
            at = timeline.expected_start_at(gang.id)
            if at is not None and at <= self.now:
                self._start(timeline, gang, before)
        for gang in [*promised, *rest]:
            if gang.id not in self.running and not self._start(timeline, gang, before):
                self._promise(timeline, gang, before)
        self.pending = [gang for gang in self.pending if gang.id not in self.running]

    def _start(self, timeline: BackfillTimeline, gang: Gang, before: Mapping[GangId, Promise]) -> bool:
        """Starts a gang if it fits now, and returns whether it did. If not, its promise is renewed."""
        expected, promised = estimate_duration(gang, self.durations), before.get(gang.id)
        result = timeline.try_backfill(
            gang, expected, preferred_nodes=frozenset(promised.nodes if promised else ())
        )
        if isinstance(result, Placement):
            timeline.start(result, expected)
            self.running[gang.id] = running_attempt(result, self.now)
            self.started[gang.id] = self.now
        elif promised is not None:
            timeline.promise(gang, expected, previous=promised)
        return gang.id in self.running

    def _promise(self, timeline: BackfillTimeline, gang: Gang, before: Mapping[GangId, Promise]) -> None:
        if len(self.promises) >= self.max_promises and gang.id not in before:
            return
        promise = timeline.promise(
            gang, estimate_duration(gang, self.durations), previous=before.get(gang.id)
        )
        if (
            gang.id in before
            and (breach := timeline.explain_breach(gang, before[gang.id], promise, priority_rule)) is not None
        ):
            self.breaches.append(breach)
        if promise is not None:
            if gang.id not in before:  # so that their order is kept
                promise = replace(promise, given_at=self.now + timedelta(microseconds=len(self.promises)))
            self.promises[gang.id] = promise
            self.first_promised.setdefault(gang.id, promise)

    def next_end(self) -> datetime | None:
        return min((self.ends_at(run) for run in self.running.values()), default=None)

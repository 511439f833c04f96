"""Small clusters of GPUs whose runs take exactly as long as their time limit, and a simple way to live
through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from hopyard.domain.cluster import Breach, BreachCause, Node, Promise, Running, Snapshot
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


def goes_before(other: Placement, gang: Gang) -> tuple[BreachCause, str]:
    """A rule: whoever is there comes first."""
    return BreachCause.PRIORITY, f"run {other.gang.id} goes before it"


def asks(
    name: str,
    gpus: int = 1,
    *,
    replicas: int = 1,
    fewest: int = 0,
    limit_s: float | None = 100.0,
    user: str = "ada",
    at_s: float = 0,
    queue: QueueName = DEFAULT_QUEUE,
    preemptible: bool = True,
    where: NodeSelector = ANY_NODE,
    cpus: float = 1,
) -> Gang:
    role = Role("worker", replicas, Resources(int(1000 * cpus), 0, gpus), fewest, where)
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


def runs(placement: Placement, since: datetime = T0) -> Running:
    return Running(placement, since, AttemptId(f"{placement.gang.id}.1"), since)


@st.composite
def clusters(draw: st.DrawFn, *, most: int = 3) -> list[Node]:
    return [machine(f"n{i}", draw(st.integers(1, 4))) for i in range(draw(st.integers(1, most)))]


@st.composite
def gangs(draw: st.DrawFn, nodes: Sequence[Node], prefix: str, *, most: int, spread_s: int = 0) -> list[Gang]:
    """Of those that fit the empty cluster."""
    found = []
    for i in range(draw(st.integers(0, most))):
        gang = asks(
            f"{prefix}{i}",
            draw(st.integers(1, 3)),
            replicas=draw(st.sampled_from([1, 1, 2, 3])),
            limit_s=10.0 * draw(st.integers(1, 12)),
            user=draw(st.sampled_from(["ada", "bob"])),
            at_s=draw(st.integers(0, spread_s)),
        )
        if Capacity.of(nodes).place(gang) is not None:
            found.append(gang)
    return found


@st.composite
def busy(draw: st.DrawFn, nodes: Sequence[Node]) -> list[Running]:
    """Some gangs that were placed one after the other, and have run for a while."""
    capacity, found = Capacity.of(nodes), []
    for gang in draw(gangs(nodes, "old", most=6)):
        placement = capacity.place(gang)
        if placement is not None:
            capacity.allocate(placement)
            assert gang.time_limit_s is not None
            found.append(runs(placement, T0 - seconds(draw(st.integers(0, int(gang.time_limit_s) - 1)))))
    return found


def end_s(running: Running, now: datetime = T0) -> float:
    """When a run that takes as long as its limit ends, in seconds from now."""
    assert running.gang.time_limit_s is not None and running.started_at is not None
    return (running.started_at - now).total_seconds() + running.gang.time_limit_s


@dataclass
class Life:
    """A cluster that is lived through from turn to turn, first come first served with promises to the first
    few that wait.

    takes_s: how long a run takes, where not as long as its limit. started, first_promised: when, by gang.
    """

    nodes: list[Node]
    now: datetime = T0
    promises_given: int = 3
    running: dict[GangId, Running] = field(default_factory=dict)
    waiting: list[Gang] = field(default_factory=list)
    reservations: tuple[Reservation, ...] = ()
    durations: dict[str, tuple[float, ...]] = field(default_factory=dict)
    takes_s: dict[GangId, float] = field(default_factory=dict)
    promises: dict[GangId, Promise] = field(default_factory=dict)
    breaches: list[Breach] = field(default_factory=list)
    started: dict[GangId, datetime] = field(default_factory=dict)
    first_promised: dict[GangId, Promise] = field(default_factory=dict)

    def ends_at(self, running: Running) -> datetime:
        assert running.started_at is not None
        return running.started_at + seconds(
            self.takes_s.get(running.gang.id, running.gang.time_limit_s or 0.0)
        )

    def turn(self) -> None:
        self.running = {name: one for name, one in self.running.items() if self.ends_at(one) > self.now}
        view = snapshot(
            self.nodes,
            list(self.running.values()),
            now=self.now,
            reservations=self.reservations,
            durations=self.durations,
        )
        future = RunEndEstimates.of(view.running, view.durations, view.now)
        for preemption in preempt_for_reservations(
            self.reservations, future, view.nodes, view.queues, self.now, grace_s=60.0
        ).preemptions:
            stopping = self.running[preemption.gang]
            self.running[preemption.gang] = replace(stopping, stopping=True)
            self.takes_s[preemption.gang] = 0.0  # it leaves before the next turn
        timeline = BackfillTimeline.of(replace(view, running=tuple(self.running.values())))
        before, self.promises = self.promises, {}
        given = list(before)
        # those that are due come first, as in a turn: what was kept for them is not for others that could
        # start early
        promised = sorted(
            (gang for gang in self.waiting if gang.id in before),
            key=lambda gang: (before[gang.id].start_at > self.now, given.index(gang.id)),
        )
        rest = [gang for gang in self.waiting if gang.id not in before]
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
        self.waiting = [gang for gang in self.waiting if gang.id not in self.running]

    def _start(self, timeline: BackfillTimeline, gang: Gang, before: Mapping[GangId, Promise]) -> bool:
        """Whether it may start now; if not, what it was promised still stands."""
        expected, promised = estimate_duration(gang, self.durations), before.get(gang.id)
        found = timeline.try_backfill(
            gang, expected, preferred_nodes=frozenset(promised.nodes if promised else ())
        )
        if isinstance(found, Placement):
            timeline.start(found, expected)
            self.running[gang.id] = runs(found, self.now)
            self.started[gang.id] = self.now
        elif promised is not None:
            timeline.promise(gang, expected, previous=promised)
        return gang.id in self.running

    def _promise(self, timeline: BackfillTimeline, gang: Gang, before: Mapping[GangId, Promise]) -> None:
        if len(self.promises) >= self.promises_given and gang.id not in before:
            return
        promise = timeline.promise(
            gang, estimate_duration(gang, self.durations), previous=before.get(gang.id)
        )
        if (
            gang.id in before
            and (breach := timeline.explain_breach(gang, before[gang.id], promise, goes_before)) is not None
        ):
            self.breaches.append(breach)
        if promise is not None:
            if gang.id not in before:  # so that their order stays known
                promise = replace(promise, given_at=self.now + timedelta(microseconds=len(self.promises)))
            self.promises[gang.id] = promise
            self.first_promised.setdefault(gang.id, promise)

    def next_end(self) -> datetime | None:
        return min((self.ends_at(one) for one in self.running.values()), default=None)

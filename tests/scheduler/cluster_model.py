"""A model of a cluster (queues, nodes, pending and running gangs) and strategies for it, for the laws of
whole cycles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from hopyard.domain.amounts import placed_amounts
from hopyard.domain.cluster import PREEMPT_GRACE_S, Node, Plan, Promise, Running, Snapshot
from hopyard.domain.duration_keys import MAX_DURATIONS, history_keys
from hopyard.domain.effective_limits import guaranteed_amounts, maximum_amounts, queue_path
from hopyard.domain.gang import ANY_NODE, NODE_LEVEL, Closeness, Gang, NodeSelector, Placement, Role, Topology
from hopyard.domain.ids import AttemptId, GangId, NodeId, PoolName, QueueName, ReservationId, Version
from hopyard.domain.queue import CPU, GPU, PastUsage, Queue, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.cycle.planner import plan
from tests.exploration import scaled_size

T0 = datetime(2030, 1, 1, tzinfo=UTC)
GIB = 1024**3
USERS = ("ada", "bob", "cy")
T = TypeVar("T")


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def machine(
    name: str,
    gpus: int = 8,
    *,
    cpus: int = 64,
    model: str = "A100",
    rack: str | None = None,
    pool: str = "default",
) -> Node:
    cards = tuple(Gpu(index, model, 80 * GIB) for index in range(gpus))
    return Node(
        NodeId(name),
        "local",
        1000 * cpus,
        256 * GIB,
        cards,
        PoolName(pool),
        labels={"rack": rack} if rack else {},
    )


def gang(
    name: str,
    gpus: int = 1,
    *,
    replicas: int = 1,
    min_replicas: int = 0,
    queue: str = "default",
    user: str = "ada",
    priority: int = 50,
    at: float = 0,
    limit_s: float | None = None,
    cpus: float = 1,
    script: str = "",
    preemptible: bool = True,
    where: NodeSelector = ANY_NODE,
    topology: Topology | None = None,
    milli: int = 0,
    follows: str | None = None,
) -> Gang:
    """A gang of `replicas` with `gpus` each."""
    role = Role(
        "worker", replicas, Resources(int(1000 * cpus), GIB, gpus, gpu_milli=milli), min_replicas, where
    )
    return Gang(
        GangId(name),
        (role,),
        T0 + seconds(at),
        QueueName(queue),
        priority,
        user,
        topology,
        limit_s,
        script,
        preemptible,
        follows=None if follows is None else GangId(follows),
    )


def queue(
    name: str,
    parent: str | None = None,
    *,
    guarantee: int | None = None,
    maximum: int | None = None,
    borrow: int | None = None,
    lend: int | None = None,
    **fields: object,
) -> Queue:
    """A queue whose limits are numbers of whole GPUs."""

    def amounts(count: int | None) -> dict[str, int]:
        return {} if count is None else {GPU: 1000 * count}

    return replace(
        Queue(
            QueueName(name),
            None if parent is None else QueueName(parent),
            1.0,
            amounts(guarantee),
            amounts(maximum),
            amounts(borrow),
            amounts(lend),
        ),
        **fields,  # type: ignore[arg-type]
    )


def tree(*queues: Queue) -> QueueTree:
    return QueueTree({queue.name: queue for queue in queues}, queues[-1].name)


@dataclass
class ClusterModel:
    """A cluster that carries out plans and does nothing else. Tests move `now` by hand."""

    nodes: dict[NodeId, Node]
    queues: QueueTree
    now: datetime = T0
    version: int = 0
    pending: dict[GangId, Gang] = field(default_factory=dict)
    running: dict[GangId, Running] = field(default_factory=dict)
    promises: dict[GangId, Promise] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    used: dict[tuple[QueueName, str], PastUsage] = field(default_factory=dict)
    durations: dict[str, tuple[float, ...]] = field(default_factory=dict)
    originals: dict[GangId, Gang] = field(default_factory=dict)
    started: dict[GangId, datetime] = field(default_factory=dict)
    attempts: Counter[GangId] = field(default_factory=Counter)
    grace_s: float = PREEMPT_GRACE_S

    def snapshot(self) -> Snapshot:
        self.version += 1
        return Snapshot(
            Version(self.version),
            self.now,
            dict(self.nodes),
            tuple(self.pending.values()),
            tuple(self.running.values()),
            self.queues,
            dict(self.used),
            self.reservations,
            dict(self.promises),
            self.durations,
            preempt_grace_s=self.grace_s,
        )

    def submit(self, *gangs: Gang) -> None:
        for gang in gangs:
            self.pending[gang.id] = gang

    def apply(self, plan: Plan) -> None:
        """Applies a plan as a store does."""
        for placement in plan.place:
            self.start(placement)
        by_attempt = {run.attempt: run for run in self.running.values()}
        for preemption in plan.preempt:
            victim = by_attempt[preemption.attempt]
            self.running[victim.gang.id] = replace(
                victim,
                stopping=True,
                preempted_for=preemption.for_gang or None,
                preempt_requested_at=self.now,
            )
        self.promises = {promise.gang: promise for promise in plan.promises}

    def start(self, placement: Placement) -> None:
        gang = placement.gang.id
        self.attempts[gang] += 1
        self.originals[gang] = self.pending.pop(gang)
        attempt = AttemptId(f"{gang}.{self.attempts[gang]}")
        self.running[gang] = Running(placement, self.now, attempt, self.now)
        self.started.setdefault(gang, self.now)

    def finish(self, gang: GangId) -> None:
        """Ends a run that has finished, and records its duration."""
        run = self.running.pop(gang)
        duration_s = run.gang.served_s + (self.now - (run.started_at or self.now)).total_seconds()
        self.durations = dict(self.durations)
        for key in history_keys(run.gang):
            self.durations[key] = (*self.durations.get(key, ()), duration_s)[-MAX_DURATIONS:]

    def evict(self, gang: GangId) -> None:
        """Ends a preempted run, which is pending again."""
        run = self.running.pop(gang)
        served_s = run.gang.served_s + (self.now - (run.started_at or self.now)).total_seconds()
        self.submit(replace(self.originals[gang], served_s=served_s, preemptions=run.gang.preemptions + 1))

    def run_cycle(self, policy: Callable[[Snapshot], Plan] = plan) -> Plan:
        new_plan = policy(self.snapshot())
        self.apply(new_plan)
        return new_plan


def overcommitted(nodes: dict[NodeId, Node], running: list[Placement]) -> list[str]:
    """Returns a text for each resource of a node of which more is allocated than exists."""
    errors = []
    cpu: Counter[NodeId] = Counter()
    memory: Counter[NodeId] = Counter()
    cards: Counter[tuple[NodeId, int]] = Counter()
    for placement in running:
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
            cpu[assignment.node] += role.resources.cpu_milli
            memory[assignment.node] += role.resources.memory_bytes
            for index in assignment.gpus:
                cards[assignment.node, index] += assignment.gpu_milli
    errors += [
        f"{node.id} has too little CPU or memory"
        for node in nodes.values()
        if cpu[node.id] > node.cpu_milli or memory[node.id] > node.memory_bytes
    ]
    errors += [
        f"{node} GPU {index} is used at {milli}" for (node, index), milli in cards.items() if milli > 1000
    ]
    return errors


def exceeded_limits(queues: QueueTree, nodes: dict[NodeId, Node], running: list[Placement]) -> list[str]:
    """Returns a text for each queue (of any level) and each user above a maximum."""
    limits = maximum_amounts(queues)
    usage: dict[QueueName, Counter[str]] = {name: Counter() for name in queues.queues}
    users: dict[tuple[QueueName, str], Counter[str]] = {}
    for placement in running:
        for level in queue_path(queues, placement.gang.queue):
            usage[level].update(placed_amounts(placement, nodes))
            users.setdefault((level, placement.gang.user), Counter()).update(placed_amounts(placement, nodes))
    errors = [
        f"{name} uses {usage[name][resource]} {resource} of {limit}"
        for name in queues.queues
        for resource, limit in limits[name].items()
        if usage[name][resource] > limit
    ]
    for (name, user), amounts in users.items():
        errors += [
            f"{user} in {name}"
            for resource, limit in queues.queues[name].user_limit.items()
            if amounts[resource] > limit
        ]
    return errors


def queue_usage(
    queues: QueueTree, nodes: dict[NodeId, Node], running: list[Placement], level: QueueName
) -> Counter[str]:
    usage: Counter[str] = Counter()
    for placement in running:
        if level in queue_path(queues, placement.gang.queue):
            usage.update(placed_amounts(placement, nodes))
    return usage


def is_borrowing(
    queues: QueueTree, nodes: dict[NodeId, Node], running: list[Placement], leaf: QueueName
) -> bool:
    guarantee = guaranteed_amounts(queues)[leaf]
    usage = queue_usage(queues, nodes, running, leaf)
    return any(
        usage[resource] > guarantee.get(resource, 0)
        for resource in (GPU, CPU)
        if any(resource in amounts for amounts in guaranteed_amounts(queues).values())
    )


# Strategies

RACKS = ("r1", "r2")


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    nodes = []
    for i in range(draw(st.integers(1, scaled_size(4)))):
        count = draw(st.sampled_from([2, 4, 4, 0]))
        model = draw(st.sampled_from(["A100", "A100", "A100", "T4"]))
        nodes.append(
            machine(
                f"n{i}",
                count,
                cpus=draw(st.sampled_from([8, 16])),
                model=model,
                rack=draw(st.sampled_from(RACKS)),
            )
        )
    return nodes


@st.composite
def queue_trees(draw: st.DrawFn) -> QueueTree:
    """A single queue, or two or three levels whose guarantees fit into each other."""
    if draw(st.integers(0, 4)) == 0:
        return tree(queue("default", time_slices=draw(st.booleans())))
    guarantees = st.sampled_from([None, 1, 2, 4])
    limit = st.sampled_from([None, None, None, None, 2, 4])
    queues = [queue("root", guarantee=draw(st.sampled_from([None, 16])))]
    for name in ("a", "b", "c")[: draw(st.integers(2, 3))]:
        guarantee, maximum = draw(guarantees), draw(limit)
        if guarantee is not None and maximum is not None:
            maximum = max(maximum, guarantee)
        queues.append(
            queue(
                name,
                "root",
                guarantee=guarantee,
                maximum=maximum,
                borrow=draw(limit),
                lend=draw(st.sampled_from([None, None, None, 0, 1])),
                weight=draw(st.sampled_from([1.0, 2.0])),
                user_limit=draw(st.sampled_from([{}, {}, {}, {GPU: 4000}])),
                preempts_lower=draw(st.booleans()),
                reclaims=draw(st.sampled_from([True, True, True, False])),
                time_slices=draw(st.sampled_from([False, False, True])),
            )
        )
    team = queues[-1]
    unused = team.guarantee.get(GPU, 4000) // 1000
    for name in (
        ("guest", "inner")
        if draw(st.integers(0, 3)) == 0 and team.maximum.get(GPU, 4000) >= 1000 * unused
        else ()
    ):
        guarantee = draw(st.sampled_from([None, *range(1, unused + 1)]))
        unused -= guarantee or 0
        lend = draw(st.sampled_from([None, 0, 1]))
        queues.append(
            queue(name, str(team.name), guarantee=guarantee, lend=lend, reclaims=draw(st.booleans()))
        )
    return tree(*queues)


def leaf_queues(queues: QueueTree) -> list[str]:
    parents = {queue.parent for queue in queues.queues.values()}
    return [name for name in queues.queues if name not in parents]


@st.composite
def gangs(draw: st.DrawFn, name: str, queues: QueueTree, *, at: float = 0) -> Gang:
    replicas = draw(st.sampled_from([1, 1, 1, 1, 2, 3]))
    share = draw(st.integers(0, 9)) == 0
    topology = draw(
        st.sampled_from(
            [
                None,
                None,
                None,
                Topology("rack", Closeness.SAME),
                Topology(NODE_LEVEL, Closeness.SPREAD),
                Topology(NODE_LEVEL, Closeness.SAME),
            ]
        )
    )
    return gang(
        name,
        0 if share else draw(st.sampled_from([1, 1, 1, 2, 2, 4, 0])),
        replicas=replicas,
        min_replicas=draw(st.sampled_from([0, 0, 0, 1])),
        queue=draw(st.sampled_from(leaf_queues(queues))),
        user=draw(st.sampled_from(USERS)),
        priority=draw(st.sampled_from([10, 50, 50, 90])),
        at=at + draw(st.integers(0, 3)),
        limit_s=draw(st.sampled_from([None, 60.0, 600.0, 3600.0])),
        cpus=draw(st.sampled_from([0.5, 1, 2])),
        script=draw(st.sampled_from(["", "train.py", "eval.py"])),
        preemptible=draw(st.integers(0, 4)) > 0,
        topology=topology if replicas > 1 else None,
        milli=500 if share else 0,
    )


@st.composite
def reservations(draw: st.DrawFn, nodes: list[Node], queues: QueueTree) -> Reservation:
    start = T0 + seconds(draw(st.sampled_from([-100, 30, 300, 3000])))
    return Reservation(
        ReservationId("r1"),
        "exam",
        start,
        start + seconds(draw(st.sampled_from([200, 2000]))),
        users=(draw(st.sampled_from(USERS)),),
        nodes=(draw(st.sampled_from([node.id for node in nodes])),),
        created_at=T0 - seconds(1000),
    )


@st.composite
def cluster_models(draw: st.DrawFn, *, most_pending: int = 8, reserved: bool = True) -> ClusterModel:
    """A cluster with running and pending gangs.

    The policy itself placed the running ones; they started and saved at different times.
    """
    nodes, queues = draw(clusters()), draw(queue_trees())
    cluster = ClusterModel(
        {node.id: node for node in nodes},
        queues,
        grace_s=draw(st.sampled_from([PREEMPT_GRACE_S, 5.0, 600.0])),
    )
    cluster.now = T0 - seconds(1000)
    greedy = draw(st.booleans())  # one queue filled the cluster before the others submitted
    for i in range(draw(st.integers(0, scaled_size(8)))):
        old = draw(gangs(f"old{i}", queues, at=-2000))
        cluster.submit(replace(old, queue=QueueName(leaf_queues(queues)[0])) if greedy else old)
    cluster.run_cycle()
    cluster.pending.clear()
    cluster.promises.clear()
    for run in list(cluster.running.values()):
        if run.stopping or draw(st.integers(0, 9)) == 0:
            del cluster.running[run.gang.id]
            continue
        started = T0 - seconds(draw(st.sampled_from([1000, 500, 20])))
        saved = draw(st.sampled_from([None, T0 - seconds(10)]))
        cluster.running[run.gang.id] = replace(run, started_at=started, saved_at=saved)
    cluster.now = T0
    cluster.submit(
        *(draw(gangs(f"g{i}", queues)) for i in range(draw(st.integers(0, scaled_size(most_pending)))))
    )
    if reserved and draw(st.integers(0, 2)) == 0:
        cluster.reservations = (draw(reservations(nodes, queues)),)
    if draw(st.booleans()):
        key = (QueueName(draw(st.sampled_from(leaf_queues(queues)))), draw(st.sampled_from(USERS)))
        cluster.used[key] = PastUsage(draw(st.sampled_from([10.0, 1e5])), T0 - seconds(3600))
    return cluster


def shuffled(snapshot: Snapshot, random: Random) -> Snapshot:
    """Returns an equal snapshot whose sequences and mappings are in another order."""

    def shuffle(items: Iterable[T]) -> list[T]:
        result = list(items)
        random.shuffle(result)
        return result

    nodes = {
        node.id: replace(node, gpus=tuple(shuffle(node.gpus))) for node in shuffle(snapshot.nodes.values())
    }
    return replace(
        snapshot,
        nodes=nodes,
        pending=tuple(shuffle(snapshot.pending)),
        running=tuple(shuffle(snapshot.running)),
        past_usage=dict(shuffle(snapshot.past_usage.items())),
        promises=dict(shuffle(snapshot.promises.items())),
        durations=dict(shuffle(snapshot.durations.items())),
        reservations=tuple(shuffle(snapshot.reservations)),
    )

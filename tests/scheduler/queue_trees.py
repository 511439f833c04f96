"""Random queue trees and gangs for them, and short factories to write one by hand."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from hopyard.domain.cluster import Node, Running
from hopyard.domain.effective_limits import child_queues, guaranteed_amounts
from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import Amounts, Queue, QueueTree
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.quota.quota_usage import QuotaUsage

T0 = datetime(2030, 1, 1, tzinfo=UTC)
LARGE_NODE = Node(
    NodeId("n"),
    "e",
    10**9,
    2**50,
    tuple(Gpu(i, "A100") for i in range(8)) + tuple(Gpu(i, "T4") for i in range(8, 16)),
)


def tree(*queues: Queue) -> QueueTree:
    return QueueTree({queue.name: queue for queue in queues}, queues[-1].name)


def queue(name: str, parent: str | None = None, **limits: object) -> Queue:
    """A queue whose amounts of `gpu` and `cpu` are whole GPUs and CPUs."""
    amounts = {key: _milli(value) if isinstance(value, dict) else value for key, value in limits.items()}
    return Queue(QueueName(name), QueueName(parent) if parent else None, **amounts)  # type: ignore[arg-type]


def _milli(amounts: dict[str, float]) -> Amounts:
    return {
        name: int(amount * 1000) if name.partition(":")[0] in ("gpu", "cpu") else int(amount)
        for name, amount in amounts.items()
    }


def gang(
    name: str,
    queue_name: str,
    *,
    gpus: int = 0,
    cpus: float = 0,
    user: str = "alice",
    replicas: int = 1,
    models: tuple[str, ...] = (),
    min_replicas: int = 0,
) -> Gang:
    role = Role("w", replicas, Resources(int(cpus * 1000), 0, gpus, models), min_replicas)
    return Gang(GangId(name), (role,), T0, QueueName(queue_name), user=user)


def running(gang: Gang, first_gpu: int = 0) -> Running:
    """A run on LARGE_NODE, on its GPUs from `first_gpu` on.

    Two runs may share a GPU: the quota usage does not check that.
    """
    assignments = []
    for rank, role in gang.replica_roles():
        assignments.append(
            Assignment(
                rank,
                LARGE_NODE.id,
                tuple(range(first_gpu, first_gpu + role.resources.gpus)),
                role.resources.gpu_milli or 1000,
            )
        )
    return Running(Placement(gang, tuple(assignments)), T0)


def cluster(*, gpus: int, cpus: int = 0) -> list[Node]:
    """Nodes with these totals. LARGE_NODE is cordoned, so that it adds nothing."""
    closed = Node(LARGE_NODE.id, "e", 0, 0, LARGE_NODE.gpus, cordoned=True)
    return [closed, Node(NodeId("all"), "e", cpus * 1000, 2**40, tuple(Gpu(i, "A100") for i in range(gpus)))]


def quota_usage(queues: QueueTree, *runs: Gang, gpus: int = 16, cpus: int = 64) -> QuotaUsage:
    return QuotaUsage.of(queues, cluster(gpus=gpus, cpus=cpus), [running(gang) for gang in runs], {}, T0)


@st.composite
def queue_trees(draw: st.DrawFn, *, limits: bool = True) -> QueueTree:
    """Up to nine queues whose guarantees fit into each other.

    With `limits`, some have maxima and limits on lending, borrowing and users.
    """
    queues: dict[QueueName, Queue] = {}
    names = [QueueName(f"q{i}") for i in range(draw(st.integers(1, 9)))]
    for i, name in enumerate(names):
        parent = draw(st.sampled_from([None, *names[max(0, i - 3) : i]]))
        queues[name] = Queue(name, parent, weight=draw(st.sampled_from([0.5, 1.0, 1.0, 3.0])))
    below = child_queues(QueueTree(queues))
    for name in reversed(names):
        sums = {
            r: sum(guaranteed_amounts(QueueTree(queues))[c].get(r, 0) for c in below.get(name, ()))
            for r in ("gpu", "cpu")
        }
        queues[name] = _with_limits(draw, queues[name], sums, limits)
    return QueueTree(queues, draw(st.sampled_from(names)))


def _with_limits(draw: st.DrawFn, queue: Queue, below: dict[str, int], limits: bool) -> Queue:
    amounts: dict[str, dict[str, int]] = {
        key: {} for key in ("guarantee", "maximum", "borrow_limit", "lend_limit", "user_limit")
    }
    for resource, minimum in below.items():
        guarantee = minimum
        if draw(st.booleans()):
            guarantee = amounts["guarantee"][resource] = minimum + 1000 * draw(st.integers(0, 6))
        for key, low in (
            (("maximum", guarantee), ("borrow_limit", 0), ("lend_limit", 0), ("user_limit", 2000))
            if limits
            else ()
        ):
            if draw(st.integers(0, 3)) == 0:
                amounts[key][resource] = low + 1000 * draw(st.integers(0, 6))
    return Queue(queue.name, queue.parent, queue.weight, **amounts)


@st.composite
def gangs(draw: st.DrawFn, queues: QueueTree, *, size: int = 30) -> list[Gang]:
    below = child_queues(queues)
    leaves = [name for name in queues.queues if name not in below]
    drawn = []
    for i in range(draw(st.integers(0, size))):
        gpus, cpus = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (4, 0), (0, 3), (3, 6)]))
        drawn.append(
            gang(
                f"g{i}",
                draw(st.sampled_from(leaves)),
                gpus=gpus,
                cpus=cpus,
                user=draw(st.sampled_from("abc")),
                replicas=draw(st.integers(1, 2)),
            )
        )
    return drawn

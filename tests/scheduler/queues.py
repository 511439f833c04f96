"""Random trees of queues and gangs for them, and short ways to write one by hand."""

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
ENDLESS = Node(
    NodeId("n"),
    "e",
    10**9,
    2**50,
    tuple(Gpu(i, "A100") for i in range(8)) + tuple(Gpu(i, "T4") for i in range(8, 16)),
)


def tree(*queues: Queue) -> QueueTree:
    return QueueTree({queue.name: queue for queue in queues}, queues[-1].name)


def queue(name: str, parent: str | None = None, **limits: object) -> Queue:
    """Amounts of `gpu` and `cpu` are given in whole ones."""
    given = {key: _milli(value) if isinstance(value, dict) else value for key, value in limits.items()}
    return Queue(QueueName(name), QueueName(parent) if parent else None, **given)  # type: ignore[arg-type]


def _milli(amounts: dict[str, float]) -> Amounts:
    return {
        name: int(amount * 1000) if name.partition(":")[0] in ("gpu", "cpu") else int(amount)
        for name, amount in amounts.items()
    }


def gang(
    name: str,
    of: str,
    *,
    gpus: int = 0,
    cpus: float = 0,
    user: str = "alice",
    replicas: int = 1,
    models: tuple[str, ...] = (),
    least: int = 0,
) -> Gang:
    role = Role("w", replicas, Resources(int(cpus * 1000), 0, gpus, models), least)
    return Gang(GangId(name), (role,), T0, QueueName(of), user=user)


def running(one: Gang, first_gpu: int = 0) -> Running:
    """On the node ENDLESS, on so many GPUs from the first on, whoever else is on them: accounts do not
    look."""
    found = []
    for rank, role in one.replica_roles():
        found.append(
            Assignment(
                rank,
                ENDLESS.id,
                tuple(range(first_gpu, first_gpu + role.resources.gpus)),
                role.resources.gpu_milli or 1000,
            )
        )
    return Running(Placement(one, tuple(found)), T0)


def cluster(*, gpus: int, cpus: int = 0) -> list[Node]:
    """What there is in all; ENDLESS is closed, so that it counts for nothing."""
    closed = Node(ENDLESS.id, "e", 0, 0, ENDLESS.gpus, cordoned=True)
    return [closed, Node(NodeId("all"), "e", cpus * 1000, 2**40, tuple(Gpu(i, "A100") for i in range(gpus)))]


def accounts(of: QueueTree, *runs: Gang, gpus: int = 16, cpus: int = 64) -> QuotaUsage:
    return QuotaUsage.of(of, cluster(gpus=gpus, cpus=cpus), [running(one) for one in runs], {}, T0)


@st.composite
def trees(draw: st.DrawFn, *, limits: bool = True) -> QueueTree:
    """Up to nine queues whose guarantees fit into each other.
    limits: some have maxima and limits of lending, borrowing and users."""
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
        queues[name] = _limited(draw, queues[name], sums, limits)
    return QueueTree(queues, draw(st.sampled_from(names)))


def _limited(draw: st.DrawFn, one: Queue, below: dict[str, int], limits: bool) -> Queue:
    found: dict[str, dict[str, int]] = {
        key: {} for key in ("guarantee", "maximum", "borrow_limit", "lend_limit", "user_limit")
    }
    for resource, least in below.items():
        sure = least
        if draw(st.booleans()):
            sure = found["guarantee"][resource] = least + 1000 * draw(st.integers(0, 6))
        for key, low in (
            (("maximum", sure), ("borrow_limit", 0), ("lend_limit", 0), ("user_limit", 2000))
            if limits
            else ()
        ):
            if draw(st.integers(0, 3)) == 0:
                found[key][resource] = low + 1000 * draw(st.integers(0, 6))
    return Queue(one.name, one.parent, one.weight, **found)


@st.composite
def gangs(draw: st.DrawFn, of: QueueTree, *, size: int = 30) -> list[Gang]:
    below = child_queues(of)
    leaves = [name for name in of.queues if name not in below]
    found = []
    for i in range(draw(st.integers(0, size))):
        gpus, cpus = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (4, 0), (0, 3), (3, 6)]))
        found.append(
            gang(
                f"g{i}",
                draw(st.sampled_from(leaves)),
                gpus=gpus,
                cpus=cpus,
                user=draw(st.sampled_from("abc")),
                replicas=draw(st.integers(1, 2)),
            )
        )
    return found

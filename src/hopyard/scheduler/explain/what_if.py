"""Other requests with which a pending gang might start sooner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hopyard.domain.cluster import Snapshot
from hopyard.domain.gang import Gang, Role
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import PoolName, QueueName
from hopyard.domain.queue import QueueTree
from hopyard.domain.resources import Resources
from hopyard.scheduler.explain.amount_text import format_bytes, format_count, format_cpus, format_gpus
from hopyard.scheduler.timeline.reservation_windows import may_use, windows

SUGGESTED_LIMITS_S: Sequence[tuple[str, float]] = (
    ("3d", 259200.0),
    ("1d", 86400.0),
    ("12h", 43200.0),
    ("6h", 21600.0),
    ("3h", 10800.0),
    ("1h", 3600.0),
    ("30m", 1800.0),
    ("10m", 600.0),
    ("5m", 300.0),
)
MAX_EXACT_MINUTES = 180  # for later starts, a round limit is close enough


@dataclass(frozen=True, slots=True)
class Alternative:
    """`text` follows "it would start", for example "with 4 GPUs"."""

    text: str
    gang: Gang


def alternatives(
    gang: Gang, reason: HoldReason, snapshot: Snapshot, promised_in_s: Sequence[float] = ()
) -> list[list[Alternative]]:
    """Returns groups of alternative requests; each group starts with the smallest change. promised_in_s:
    seconds until the promised starts of other gangs."""
    groups = [
        _fewer_gpus(gang),
        _fewer_replicas(gang),
        _any_model(gang),
        _less_memory(gang),
        _fewer_cpus(gang),
    ]
    groups += [[change] for change in _other_pools(gang, snapshot)]
    if reason in (HoldReason.QUOTA, HoldReason.USER_LIMIT, HoldReason.NO_QUEUE):
        groups += [[change] for change in _other_queues(gang, snapshot.queues)]
    groups.append(_shorter_limits(gang, snapshot, promised_in_s))
    return [group for group in groups if group]


def _single_role(gang: Gang) -> Role | None:
    return gang.roles[0] if len(gang.roles) == 1 else None


def _with_resources(gang: Gang, change: Callable[[Resources], Resources]) -> Gang:
    role = gang.roles[0]
    return replace(gang, roles=(replace(role, resources=change(role.resources)),))


def _halvings(count: int, minimum: int) -> Iterator[int]:
    while count // 2 >= minimum:
        count //= 2
        yield count


def _fewer_gpus(gang: Gang) -> list[Alternative]:
    role = _single_role(gang)
    if role is None or role.resources.gpus < 2:
        return []
    suffix = " for each replica" if role.replicas > 1 else ""
    model = " or ".join(role.resources.gpu_models)

    def fewer(count: int) -> Gang:
        return _with_resources(gang, lambda request: replace(request, gpus=count))

    return [
        Alternative(f"with {format_gpus(count, model)}{suffix}", fewer(count))
        for count in _halvings(role.resources.gpus, 1)
    ]


def _fewer_replicas(gang: Gang) -> list[Alternative]:
    role = _single_role(gang)
    if role is None or role.required_replicas < 2:
        return []
    return [
        Alternative(
            f"with {format_count(count, 'replica')}",
            replace(gang, roles=(replace(role, replicas=count, min_replicas=0),)),
        )
        for count in _halvings(role.required_replicas, 1)
    ]


def _any_model(gang: Gang) -> list[Alternative]:
    if not any(role.resources.gpu_models for role in gang.roles):
        return []
    roles = tuple(replace(role, resources=replace(role.resources, gpu_models=())) for role in gang.roles)
    return [Alternative("with GPUs of any model", replace(gang, roles=roles))]


def _less_memory(gang: Gang) -> list[Alternative]:
    role = _single_role(gang)
    if role is None or role.resources.memory_bytes < 2**30:
        return []

    def less(amount: int) -> Gang:
        return _with_resources(gang, lambda request: replace(request, memory_bytes=amount))

    return [
        Alternative(f"with {format_bytes(amount)} of memory", less(amount))
        for amount in _halvings(role.resources.memory_bytes, 2**28)
    ]


def _fewer_cpus(gang: Gang) -> list[Alternative]:
    role = _single_role(gang)
    if role is None or role.resources.cpu_milli < 2000:
        return []

    def fewer(milli: int) -> Gang:
        return _with_resources(gang, lambda request: replace(request, cpu_milli=milli))

    return [
        Alternative(f"with {format_cpus(milli)}", fewer(milli))
        for milli in _halvings(role.resources.cpu_milli, 1000)
    ]


def _other_pools(gang: Gang, snapshot: Snapshot) -> Iterator[Alternative]:
    """Returns alternatives only if the gang is bound to a pool or a GPU model."""
    role = _single_role(gang)
    if role is None or not (role.where.pools or role.resources.gpu_models):
        return
    models: dict[PoolName, set[str]] = {}
    for node in snapshot.nodes.values():
        models.setdefault(node.pool, set()).update(gpu.model for gpu in node.gpus)
    for pool, pool_models in sorted(models.items()):
        request, text = role.resources, f"in pool {pool}"
        if request.gpu_models and not {model.casefold() for model in pool_models} & {
            model.casefold() for model in request.gpu_models
        }:
            if not pool_models:
                continue
            request, text = (
                replace(request, gpu_models=()),
                f"in pool {pool}, with {' or '.join(sorted(pool_models))}",
            )
        if role.where.pools != (pool,) and (pool not in role.where.pools or request is not role.resources):
            yield Alternative(
                text,
                replace(
                    gang, roles=(replace(role, resources=request, where=replace(role.where, pools=(pool,))),)
                ),
            )


def _other_queues(gang: Gang, queues: QueueTree) -> Iterator[Alternative]:
    parents = {queue.parent for queue in queues.queues.values()}
    for name in sorted(queues.queues):
        if name != gang.queue and name not in parents and is_submitter(gang.user, name, queues):
            yield Alternative(f"in queue {name}", replace(gang, queue=name))


def is_submitter(user: str, name: QueueName, queues: QueueTree) -> bool:
    level: QueueName | None = name
    while level is not None:
        queue = queues.queues[level]
        if queue.submitters:
            return user in queue.submitters
        level = queue.parent
    return True


def _shorter_limits(gang: Gang, snapshot: Snapshot, promised_in_s: Sequence[float]) -> list[Alternative]:
    """Returns round time limits, and limits that end just before a promised start or a reservation of another
    owner."""
    limits = {limit_s: text for text, limit_s in SUGGESTED_LIMITS_S}
    other_windows = [
        window
        for window in windows(snapshot.reservations, snapshot.now)
        if not may_use(gang, window.reservation, snapshot.queues)
    ]
    for begins_s in (*promised_in_s, *(window.from_s for window in other_windows)):
        minutes, seconds = int(begins_s // 60), int(begins_s // 5 * 5)
        if 1 <= minutes < MAX_EXACT_MINUTES:
            limits.setdefault(60.0 * minutes, f"{minutes}m")
        elif 0 < seconds < 60:
            limits.setdefault(float(seconds), f"{seconds}s")
    return [
        Alternative(f"with --time {text}", replace(gang, time_limit_s=limit_s))
        for limit_s, text in sorted(limits.items(), reverse=True)
        if gang.time_limit_s is None or limit_s < gang.time_limit_s
    ]

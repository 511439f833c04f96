"""Reports of queues and users: usage, borrowed and lent amounts, and numbers of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopyard.domain.amounts import decayed_share_seconds, dominant_share, total_amounts
from hopyard.domain.cluster import Snapshot
from hopyard.domain.effective_limits import guaranteed_amounts, maximum_amounts, queue_path
from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts, Queue
from hopyard.scheduler.quota.fair_share import borrowed_amounts, historical_share
from hopyard.scheduler.quota.quota_usage import QuotaUsage


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One queue with its descendants.

    guarantee, maximum: its guarantee and its limit. share: its dominant share of the cluster. borrowed: its
    usage beyond its guarantee, of resources that any queue has a guarantee for. lent: the part of its
    guarantee that other queues use and that would have to be reclaimed: what is idle of it less what is free.
    running, pending: numbers of runs.
    """

    queue: Queue
    depth: int
    leaf: bool
    guarantee: Amounts
    maximum: Amounts
    used: Amounts
    share: float
    borrowed: Amounts
    lent: Amounts
    running: int
    pending: int


@dataclass(frozen=True, slots=True)
class UserReport:
    """The usage of one user in one queue. historical_share: the average share of the cluster, weighted by
    half for each half-life of age. score: users are ordered by it, the smallest first."""

    user: str
    used: Amounts
    share: float
    historical_share: float
    score: float
    running: int
    pending: int


def queue_report(snapshot: Snapshot) -> list[QueueReport]:
    """Returns all queues, each after its parent, siblings by name; then queues that are not in the tree but
    still in use."""
    tree, quota_usage = snapshot.queues, _quota_usage(snapshot)
    cluster = total_amounts(node for node in snapshot.nodes.values() if node.schedulable)
    running = _counts_by_level(snapshot, [run.gang for run in snapshot.running])
    pending = _counts_by_level(snapshot, snapshot.pending)
    guarantees, maximums = guaranteed_amounts(tree), maximum_amounts(tree)
    removed_queues = [name for name in {*running, *pending} if name not in tree.queues]
    paths = {name: queue_path(tree, name)[::-1] for name in tree.queues} | {
        name: (name,) for name in removed_queues
    }
    total_used = Counter[str]()
    for name in paths:
        if len(paths[name]) == 1:
            total_used.update(quota_usage.used(name))
    guaranteed_resources = {
        resource for amounts in guarantees.values() for resource, amount in amounts.items() if amount
    }
    parents = {queue.parent for queue in tree.queues.values()}
    reports = []
    for name in sorted(paths, key=lambda queue_name: (queue_name not in tree.queues, paths[queue_name])):
        used, guarantee = quota_usage.used(name), guarantees.get(name, {})
        reports.append(
            QueueReport(
                queue=tree.queues.get(name) or Queue(name),
                depth=len(paths[name]) - 1,
                leaf=name not in parents,
                guarantee=guarantee,
                maximum=maximums.get(name, {}),
                used=used,
                share=dominant_share(used, cluster),
                borrowed={
                    resource: amount
                    for resource, amount in borrowed_amounts(used, guarantee).items()
                    if resource in guaranteed_resources
                },
                lent=_lent_amounts(quota_usage, name, guarantee, total_used, cluster),
                running=running[name],
                pending=pending[name],
            )
        )
    return reports


def user_report(snapshot: Snapshot, queue: QueueName) -> list[UserReport]:
    """Returns the users of a leaf queue that have running or pending gangs in it, or past usage that still
    counts, in the order in which they are served."""
    quota_usage, tree = _quota_usage(snapshot), snapshot.queues
    cluster = total_amounts(node for node in snapshot.nodes.values() if node.schedulable)
    running = Counter(run.gang.user for run in snapshot.running if run.gang.queue == queue)
    pending = Counter(gang.user for gang in snapshot.pending if gang.queue == queue)
    historical_shares = {
        user: historical_share(decayed_share_seconds(used, snapshot.now, tree.half_life_s), tree.half_life_s)
        for (used_queue, user), used in snapshot.past_usage.items()
        if used_queue == queue
    }  # fmt: skip
    reports = []
    for user in {*running, *pending, *historical_shares}:
        used = quota_usage.used_by_user(queue, user)
        score = quota_usage.user_key(queue, user)[0]
        reports.append(
            UserReport(
                user,
                used,
                dominant_share(used, cluster),
                historical_shares.get(user, 0.0),
                score,
                running[user],
                pending[user],
            )
        )
    return sorted(reports, key=lambda run: (run.score, run.user))


def _quota_usage(snapshot: Snapshot) -> QuotaUsage:
    return QuotaUsage.of(
        snapshot.queues, snapshot.nodes.values(), snapshot.running, snapshot.past_usage, snapshot.now
    )


def _counts_by_level(snapshot: Snapshot, gangs: Sequence[Gang]) -> Counter[QueueName]:
    direct = Counter(gang.queue for gang in gangs)
    counts: Counter[QueueName] = Counter()
    for queue, count in direct.items():
        for level in queue_path(snapshot.queues, queue) or (queue,):
            counts[level] += count
    return counts


def _lent_amounts(
    quota_usage: QuotaUsage,
    queue: QueueName,
    guarantee: Amounts,
    total_used: Mapping[str, int],
    cluster: Amounts,
) -> Amounts:
    """Returns the unused part of its guarantee, less what is free for it. The unused non-lendable amounts of
    other queues are not free for it."""
    used, lent = quota_usage.used(queue), {}
    for name, amount in guarantee.items():
        own_usage, total = used.get(name, 0), total_used.get(name, 0)
        free = max(
            cluster.get(name, 0) - total - quota_usage.unused_non_lendable_elsewhere(queue, name, total),
            0,
        )
        lent[name] = min(amount - own_usage - free, total - own_usage)
    return {name: amount for name, amount in lent.items() if amount > 0}

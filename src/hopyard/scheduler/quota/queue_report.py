"""The queues as people look at them: who has what, owes what, and waits."""

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
    """One queue with all below it.

    guarantee, maximum: what it is guaranteed, and the most that it may use, by its own limits. share: the
    dominant share of the cluster that it uses. borrowed: what it uses beyond its guarantee, of what somebody
    is guaranteed. lent: what of its guarantee others use, so that it would have to be taken back: what is
    idle of it less what is free. running, pending: how many runs.
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
    """What one user uses of one queue. historical_share: of the cluster, on average, where each half-life ago
    counts half. score: what users are ordered by, the smallest first."""

    user: str
    used: Amounts
    share: float
    historical_share: float
    score: float
    running: int
    pending: int


def queue_report(snapshot: Snapshot) -> list[QueueReport]:
    """All queues, each after the one above it, siblings by name; then those that are not in the tree and
    still used."""
    tree, books = snapshot.queues, _quota_usage(snapshot)
    cluster = total_amounts(node for node in snapshot.nodes.values() if node.schedulable)
    running = _counts_by_level(snapshot, [one.gang for one in snapshot.running])
    waiting = _counts_by_level(snapshot, snapshot.pending)
    sure, limits = guaranteed_amounts(tree), maximum_amounts(tree)
    everything = [name for name in {*running, *waiting} if name not in tree.queues]
    above = {name: queue_path(tree, name)[::-1] for name in tree.queues} | {
        name: (name,) for name in everything
    }
    used_now = Counter[str]()
    for name in above:
        if len(above[name]) == 1:
            used_now.update(books.used(name))
    promised = {resource for amounts in sure.values() for resource, amount in amounts.items() if amount}
    inner = {queue.parent for queue in tree.queues.values()}
    found = []
    for name in sorted(above, key=lambda n: (n not in tree.queues, above[n])):
        used, own = books.used(name), sure.get(name, {})
        found.append(
            QueueReport(
                queue=tree.queues.get(name) or Queue(name),
                depth=len(above[name]) - 1,
                leaf=name not in inner,
                guarantee=own,
                maximum=limits.get(name, {}),
                used=used,
                share=dominant_share(used, cluster),
                borrowed={
                    resource: amount
                    for resource, amount in borrowed_amounts(used, own).items()
                    if resource in promised
                },
                lent=_lent_amounts(books, name, own, used_now, cluster),
                running=running[name],
                pending=waiting[name],
            )
        )
    return found


def user_report(snapshot: Snapshot, queue: QueueName) -> list[UserReport]:
    """Everybody who uses a leaf, waits in it, or used it so that it still counts; in the order in which they
    come next."""
    books, tree = _quota_usage(snapshot), snapshot.queues
    cluster = total_amounts(node for node in snapshot.nodes.values() if node.schedulable)
    running = Counter(one.gang.user for one in snapshot.running if one.gang.queue == queue)
    waiting = Counter(gang.user for gang in snapshot.pending if gang.queue == queue)
    past = {
        user: historical_share(decayed_share_seconds(used, snapshot.now, tree.half_life_s), tree.half_life_s)
        for (of, user), used in snapshot.past_usage.items()
        if of == queue
    }  # fmt: skip
    found = []
    for user in {*running, *waiting, *past}:
        used = books.used_by_user(queue, user)
        score = books.user_key(queue, user)[0]
        found.append(
            UserReport(
                user,
                used,
                dominant_share(used, cluster),
                past.get(user, 0.0),
                score,
                running[user],
                waiting[user],
            )
        )
    return sorted(found, key=lambda one: (one.score, one.user))


def _quota_usage(snapshot: Snapshot) -> QuotaUsage:
    return QuotaUsage.of(
        snapshot.queues, snapshot.nodes.values(), snapshot.running, snapshot.past_usage, snapshot.now
    )


def _counts_by_level(snapshot: Snapshot, gangs: Sequence[Gang]) -> Counter[QueueName]:
    direct = Counter(gang.queue for gang in gangs)
    found: Counter[QueueName] = Counter()
    for queue, count in direct.items():
        for level in queue_path(snapshot.queues, queue) or (queue,):
            found[level] += count
    return found


def _lent_amounts(
    quota_usage: QuotaUsage,
    queue: QueueName,
    guarantee: Amounts,
    total_used: Mapping[str, int],
    cluster: Amounts,
) -> Amounts:
    """What it does not use of its guarantee, less what is free for it: what others keep is not."""
    used, lent = quota_usage.used(queue), {}
    for name, amount in guarantee.items():
        mine, everybody = used.get(name, 0), total_used.get(name, 0)
        free = max(
            cluster.get(name, 0)
            - everybody
            - quota_usage.unused_non_lendable_elsewhere(queue, name, everybody),
            0,
        )
        lent[name] = min(amount - mine - free, everybody - mine)
    return {name: amount for name, amount in lent.items() if amount > 0}

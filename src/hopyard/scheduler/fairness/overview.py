"""The queues as people look at them: who has what, owes what, and waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopyard.domain.amounts import decayed, dominant_share, totals
from hopyard.domain.cluster import Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts, Queue
from hopyard.domain.quota import guarantees, most, path
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.fairness.shares import borrowed, past_share


@dataclass(frozen=True, slots=True)
class QueueUse:
    """One queue with all below it.

    sure, most: what it is guaranteed, and the most that it may use, by its own limits. share: the dominant
    share of the cluster that it uses. borrowed: what it uses beyond its guarantee, of what somebody is
    guaranteed. lent: what of its guarantee others use, so that it would have to be taken back: what is idle
    of it less what is free. running, waiting: how many runs.
    """

    queue: Queue
    depth: int
    leaf: bool
    sure: Amounts
    most: Amounts
    used: Amounts
    share: float
    borrowed: Amounts
    lent: Amounts
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class UserUse:
    """What one user uses of one queue. past_share: of the cluster, on average, where each half-life ago
    counts half. score: what users are ordered by, the smallest first."""

    user: str
    used: Amounts
    share: float
    past_share: float
    score: float
    running: int
    waiting: int


def overview(snapshot: Snapshot) -> list[QueueUse]:
    """All queues, each after the one above it, siblings by name; then those that are not in the tree and
    still used."""
    tree, books = snapshot.queues, _accounts(snapshot)
    cluster = totals(node for node in snapshot.nodes.values() if node.open)
    running = _by_level(snapshot, [one.gang for one in snapshot.running])
    waiting = _by_level(snapshot, snapshot.pending)
    sure, limits = guarantees(tree), most(tree)
    everything = [name for name in {*running, *waiting} if name not in tree.queues]
    above = {name: path(tree, name)[::-1] for name in tree.queues} | {name: (name,) for name in everything}
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
            QueueUse(
                queue=tree.queues.get(name) or Queue(name),
                depth=len(above[name]) - 1,
                leaf=name not in inner,
                sure=own,
                most=limits.get(name, {}),
                used=used,
                share=dominant_share(used, cluster),
                borrowed={
                    resource: amount
                    for resource, amount in borrowed(used, own).items()
                    if resource in promised
                },
                lent=_lent(books, name, own, used_now, cluster),
                running=running[name],
                waiting=waiting[name],
            )
        )
    return found


def users_of(snapshot: Snapshot, queue: QueueName) -> list[UserUse]:
    """Everybody who uses a leaf, waits in it, or used it so that it still counts; in the order in which they
    come next."""
    books, tree = _accounts(snapshot), snapshot.queues
    cluster = totals(node for node in snapshot.nodes.values() if node.open)
    running = Counter(one.gang.user for one in snapshot.running if one.gang.queue == queue)
    waiting = Counter(gang.user for gang in snapshot.pending if gang.queue == queue)
    past = {
        user: past_share(decayed(used, snapshot.now, tree.half_life_s), tree.half_life_s)
        for (of, user), used in snapshot.used.items()
        if of == queue
    }  # fmt: skip
    found = []
    for user in {*running, *waiting, *past}:
        used = books.used_by(queue, user)
        score = books.user_key(queue, user)[0]
        found.append(
            UserUse(
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


def _accounts(snapshot: Snapshot) -> Accounts:
    return Accounts.of(
        snapshot.queues, snapshot.nodes.values(), snapshot.running, snapshot.used, snapshot.now
    )


def _by_level(snapshot: Snapshot, gangs: Sequence[Gang]) -> Counter[QueueName]:
    direct = Counter(gang.queue for gang in gangs)
    found: Counter[QueueName] = Counter()
    for queue, count in direct.items():
        for level in path(snapshot.queues, queue) or (queue,):
            found[level] += count
    return found


def _lent(
    books: Accounts, queue: QueueName, sure: Amounts, all_used: Mapping[str, int], cluster: Amounts
) -> Amounts:
    """What it does not use of its guarantee, less what is free for it: what others keep is not."""
    used, lent = books.used(queue), {}
    for name, amount in sure.items():
        mine, everybody = used.get(name, 0), all_used.get(name, 0)
        free = max(cluster.get(name, 0) - everybody - books.kept_elsewhere(queue, name, everybody), 0)
        lent[name] = min(amount - mine - free, everybody - mine)
    return {name: amount for name, amount in lent.items() if amount > 0}

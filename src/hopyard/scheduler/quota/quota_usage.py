"""Who may use how much of the cluster now, and who comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from hopyard.domain.amounts import decayed_share_seconds, dominant_share, placed_amounts, total_amounts
from hopyard.domain.cluster import Node, Running
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import Amounts, PastUsage, QueueTree
from hopyard.scheduler.quota import fair_share
from hopyard.scheduler.quota.admission import AdmissionRules, QuotaRefusal
from hopyard.scheduler.quota.lending import Lending
from hopyard.scheduler.quota.queue_limits import NO_AMOUNTS, QueueLimits
from hopyard.scheduler.quota.requests import GpuModels, requested
from hopyard.scheduler.quota.usage_ledger import UsageLedger

MAX_CACHED_REQUESTS = 4096  # that are remembered
MAX_CACHED_PLACEMENTS = 16_384  # likewise, including ended gangs
QueueKey = tuple[tuple[int, float, QueueName], ...]


class QuotaUsage:
    """What every queue and user uses, and the questions that are asked of it. Mutable; a copy is cheap.

    The rules (docs/concepts/scheduling.md says them for people), for each resource that a gang asks for, at
    each level from its queue up: use never exceeds the maximum, nor the guarantee and what may be borrowed;
    what a queue keeps of its guarantee (lend_limit) nobody else uses. Resources that no queue names have no
    limit.
    """

    __slots__ = (
        "_cluster_capacity",
        "_gpu_models",
        "_history",
        "_ledger",
        "_limits",
        "_nodes",
        "_placement_amounts",
        "_queue_keys",
        "_refusals",
        "_requests",
        "_user_shares",
    )

    def __init__(
        self, limits: QueueLimits, ledger: UsageLedger, history: Mapping[tuple[QueueName, str], float]
    ) -> None:
        self._limits = limits
        self._ledger = ledger
        self._history = history
        self._nodes: Mapping[NodeId, Node] = {}
        self._gpu_models = GpuModels()
        # of roles by identity, as many gangs share
        self._requests: dict[int, tuple[tuple[Role, ...], Amounts]] = {}
        self._cluster_capacity: Amounts = NO_AMOUNTS
        # of users, with what they are the shares of
        self._user_shares: dict[tuple[QueueName, str], tuple[Amounts, float]] = {}
        # what gangs use, as long as the cards are the same
        self._placement_amounts: dict[GangId, tuple[Placement, Amounts]] = {}
        # Cached by the identity of roles too, until usage changes:
        self._queue_keys: dict[tuple[QueueName, int], tuple[tuple[Role, ...], QueueKey]] = {}
        self._refusals: dict[tuple[QueueName, str, int], tuple[tuple[Role, ...], QuotaRefusal | None]] = {}

    @classmethod
    def of(
        cls,
        tree: QueueTree,
        nodes: Iterable[Node],
        running: Iterable[Running],
        history: Mapping[tuple[QueueName, str], PastUsage],
        now: datetime,
    ) -> QuotaUsage:
        """history: what was used in the past, by queue and user."""
        limits = QueueLimits.of(tree)
        accounts = cls(limits, UsageLedger(limits), {})
        accounts.set_history(history, now)
        accounts.set_nodes(nodes)
        accounts.charge_all(one.placement for one in running)
        return accounts

    def set_history(self, history: Mapping[tuple[QueueName, str], PastUsage], now: datetime) -> None:
        """What was used in the past, as it weighs now."""
        half_life_s = self._limits.tree.half_life_s
        self._history = {
            key: fair_share.historical_share(decayed_share_seconds(past, now, half_life_s), half_life_s)
            for key, past in history.items()
        }

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """The nodes that there are now. Shares are shares of what the open ones have. What was charged stays,
        and nodes that are gone are remembered for when it is credited; a node whose GPUs became others needs
        new accounts."""
        listed = list(nodes)
        self._nodes = {**self._nodes, **{node.id: node for node in listed}}
        self._cluster_capacity, self._user_shares = (
            total_amounts(node for node in listed if node.schedulable),
            {},
        )
        self._gpu_models, self._requests, self._placement_amounts = GpuModels.of(listed), {}, {}
        self._clear_caches()

    def set_node(self, before: Node, after: Node) -> None:
        """One node is another now, with the same GPUs."""
        self._nodes = {**self._nodes, after.id: after}
        self._gpu_models, self._requests, self._placement_amounts = (
            self._gpu_models.with_node_changed(before, after),
            {},
            {},
        )
        self._clear_caches()
        cluster = Counter(self._cluster_capacity)
        if before.schedulable:
            cluster.subtract(total_amounts([before]))
        if after.schedulable:
            cluster.update(total_amounts([after]))
        self._cluster_capacity, self._user_shares = (
            {name: amount for name, amount in cluster.items() if amount},
            {},
        )

    def _clear_caches(self) -> None:
        """Something was charged, or amounts count otherwise."""
        self._queue_keys.clear()
        self._refusals.clear()

    def copy(self) -> QuotaUsage:
        other = QuotaUsage(self._limits, self._ledger.copy(), self._history)
        other._nodes, other._gpu_models, other._cluster_capacity = (
            self._nodes,
            self._gpu_models,
            self._cluster_capacity,
        )
        # as long as the cards are the same, both may learn from each other
        other._requests, other._placement_amounts = self._requests, self._placement_amounts
        # as long as the cluster is the same, both may learn from each other
        other._user_shares = self._user_shares
        return other

    def __eq__(self, other: object) -> bool:
        """Whether the same was charged."""
        return self._ledger == other._ledger if isinstance(other, QuotaUsage) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def charge(self, placement: Placement) -> None:
        gang = placement.gang
        self._ledger.add(gang.queue, gang.user, self._amounts_of(placement), 1)
        self._clear_caches()

    def charge_all(self, placements: Iterable[Placement]) -> None:
        """`charge` each; where they are many, much cheaper."""
        self._apply_all(placements, 1)

    def credit_all(self, placements: Iterable[Placement]) -> None:
        """Exactly undo `charge_all`."""
        self._apply_all(placements, -1)

    def _apply_all(self, placements: Iterable[Placement], sign: int) -> None:
        """Each user's in each queue at once."""
        sums: dict[tuple[QueueName, str], dict[str, int]] = {}
        for placement in placements:
            gang = placement.gang
            of_user = sums.setdefault((gang.queue, gang.user), {})
            for name, amount in self._amounts_of(placement).items():
                of_user[name] = of_user.get(name, 0) + amount
        for (queue, user), amounts in sums.items():
            self._ledger.add(queue, user, amounts, sign)
        self._clear_caches()

    def credit(self, placement: Placement) -> None:
        """Exactly undo `charge`."""
        gang = placement.gang
        self._ledger.add(gang.queue, gang.user, self._amounts_of(placement), -1)
        self._clear_caches()

    def _amounts_of(self, placement: Placement) -> Amounts:
        gang = placement.gang.id
        known = self._placement_amounts.get(gang)
        if known is not None and known[0] is placement:
            return known[1]
        if len(self._placement_amounts) >= MAX_CACHED_PLACEMENTS:
            self._placement_amounts.clear()
        uses = placed_amounts(placement, self._nodes)
        self._placement_amounts[gang] = placement, uses
        return uses

    def used(self, queue: QueueName) -> Amounts:
        """What the queue uses with all below it."""
        return self._ledger.used(queue)

    def used_by_user(self, queue: QueueName, user: str) -> Amounts:
        """What one user uses in the queue, which is a leaf or limits its users."""
        return self._ledger.used_by_user(queue, user)

    def refusal(self, gang: Gang) -> QuotaRefusal | None:
        """Why its queue or its user may use no more of what it asks for, or None."""
        if gang.queue in self._limits.unlimited_leaves:
            return None
        key, roles = (gang.queue, gang.user, id(gang.roles)), gang.roles
        known = self._refusals.get(key)
        if known is None or known[0] is not roles:
            if len(self._refusals) >= MAX_CACHED_REQUESTS:
                self._refusals.clear()
            known = self._refusals[key] = roles, self._admission_rules.refusal(gang, self.requested(gang))
        return known[1]

    def is_refused_for(self, gang: Gang, resources: Collection[str]) -> bool:
        """Whether `refusal` is for one of these resources; GPU stands for those of all models."""
        return self._admission_rules.is_refused_for(gang, self.requested(gang), resources)

    def closed_models(self, gang: Gang) -> frozenset[str]:
        """Models of GPUs, in lower case, of which its queue or its user may not use as many as it could land
        on: those of its roles that have the choice may use none of them."""
        if not self._limits.limited_gpu_models.get(gang.queue):
            return frozenset()
        return self._admission_rules.closed_models(self.limit_to_quota(gang))

    def allowed_sizes(self, gang: Gang) -> list[tuple[Gang, frozenset[str]]]:
        """As large as the gang may be, with the `closed_models` for that; for an elastic one that some model
        is closed to, also as large as that one is not: nobody knows which is the larger before it is seen
        what is free."""
        largest = self.limit_to_quota(gang)
        found = [(largest, self.closed_models(largest))]
        for model in sorted(found[0][1]) if gang.is_elastic else ():
            sized = _largest_allowed(largest, partial(self._is_model_available, model))
            if model not in (closed := self.closed_models(sized)):
                found.append((sized, closed))
        return found

    def _is_model_available(self, model: str, gang: Gang) -> bool:
        return model not in self.closed_models(gang)

    def limit_to_quota(self, gang: Gang) -> Gang:
        """An elastic gang with no more replicas than its queue and its user may use; others as they are."""
        if not gang.is_elastic or gang.queue in self._limits.unlimited_leaves:
            return gang
        return _largest_allowed(gang, lambda sized: self.refusal(sized) is None)

    def limit_to_guarantee(self, gang: Gang) -> Gang:
        """An elastic gang with no more replicas than the guarantee covers that covers its smallest size, of
        its queue or one above it; as it is where none does. It is no larger than that where it needs
        something that others are sure of alone."""
        lending, ask = self._make_lending, self.requested(gang)
        lender = lending.find_lender(gang.queue, ask)[0] if gang.is_elastic else None
        if lender is None:
            return gang
        alone = not lending.not_reclaimable(lender, ask)
        return _largest_allowed(
            gang,
            lambda sized: (
                alone and lending.is_covered(lender, gang.queue, requested(sized, self._gpu_models))
            ),
        )

    def queue_key(self, queue: QueueName, gang: Gang) -> QueueKey:
        """Smaller comes first. For each level from the top: whether the gang goes beyond the guarantee there;
        if not, how full the guarantee is, if so, the dominant share of what is borrowed already, by weight;
        then the queue's name."""
        roles = gang.roles
        known = self._queue_keys.get((queue, id(roles)))
        if known is not None and known[0] is roles:
            return known[1]
        ask, keys = self.requested(gang), []
        for level in self._limits.path(queue):
            keys.append(self.fair_share_key(level, ask))
            ask = self.request_above(level, ask)
        found = tuple(reversed(keys))
        if len(self._queue_keys) >= MAX_CACHED_REQUESTS:
            self._queue_keys.clear()
        self._queue_keys[queue, id(roles)] = roles, found
        return found

    def requested(self, gang: Gang) -> Amounts:
        """What it asks for, as `level_key` takes it."""
        roles = gang.roles
        known = self._requests.get(id(roles))
        if known is not None and known[0] is roles:
            return known[1]
        if len(self._requests) >= MAX_CACHED_REQUESTS:
            self._requests.clear()
        ask = requested(gang, self._gpu_models)
        self._requests[id(roles)] = roles, ask
        return ask

    def user_key(self, queue: QueueName, user: str) -> tuple[float]:
        """Smaller comes first: the share of the cluster that the user uses now in this queue, and on top what
        was used on average in the past, where each half-life ago counts half."""
        key, used = (queue, user), self._ledger.used_by_user(queue, user)
        known = self._user_shares.get(key)
        if known is None or known[0] is not used:  # amounts are replaced, never changed
            known = self._user_shares[key] = used, dominant_share(used, self._cluster_capacity)
        return (known[1] + self._history.get(key, 0.0),)

    def unused_non_lendable_elsewhere(self, queue: QueueName, resource: str, total_used: int) -> int:
        """What of it queues keep and do not use, other than this one, those below it and those above it.
        total_used: by everybody."""
        ledger, levels = self._ledger, self._limits.path(queue)
        if resource not in self._limits.non_lendable_names:
            return 0
        below = ledger.committed(queue, resource) - ledger.used(queue).get(resource, 0)
        return (
            ledger.total_committed(resource)
            - total_used
            - below
            - sum(ledger.unused_non_lendable(level, resource) for level in levels[1:])
        )

    def request_above(self, queue: QueueName, requested: Amounts) -> Amounts:
        """What is asked of the level above one that is asked for so much: what the lower one keeps and does
        not use is there."""
        return self._ledger.request_beyond_non_lendable(queue, requested)

    def is_borrowed(self, running: Running) -> bool:
        """Whether its queue uses more than its guarantee of something that this run uses and that some queue
        is sure of."""
        return self._make_lending.is_borrowing(
            running.gang.queue, placed_amounts(running.placement, self._nodes)
        )

    def reclaimable_queues(self, gang: Gang) -> frozenset[QueueName]:
        """The queues that it may reclaim from: they use what guarantees of its own queue, or one above it,
        lend (see `Lending`)."""
        return self._make_lending.reclaimable_queues(gang.queue, self.requested(gang))

    def find_lender(self, gang: Gang) -> tuple[QueueName | None, Sequence[str]]:
        """The queue that may take back for the gang what others use (see `Lending`), and of which
        resources."""
        return self._make_lending.find_lender(gang.queue, self.requested(gang))

    def not_reclaimable(self, gang: Gang) -> frozenset[str]:
        """What it asks for and may take from nobody: others are sure of that, and its lender is not."""
        lender, ask = self.find_lender(gang)[0], self.requested(gang)
        return frozenset() if lender is None else self._make_lending.not_reclaimable(lender, ask)

    def borrowers(self, lender: QueueName, resources: Sequence[str]) -> frozenset[QueueName]:
        """`owed`, for those who know the lender."""
        return self._make_lending.borrowers(lender, resources)

    def is_reclaimable_from(self, queue: QueueName, gang: Gang) -> bool:
        """Whether the queue is among those that `owed` names: quicker, to ask again for one after something
        was credited."""
        return self._make_lending.is_reclaimable_from(queue, gang.queue, self.requested(gang))

    def may_reclaim(self, queue: QueueName) -> bool:
        """Whether it, or one above it, has guarantees left that it may take back, while some queue uses more
        than its own."""
        return self._make_lending.may_reclaim(queue)

    @property
    def _admission_rules(self) -> AdmissionRules:
        return AdmissionRules(self._limits, self._ledger, self._gpu_models, self._cluster_capacity)

    @property
    def _make_lending(self) -> Lending:
        return Lending(self._limits, self._ledger)

    def fair_share_key(self, queue: QueueName, requested: Amounts) -> tuple[int, float, QueueName]:
        """One level of `queue_key`. What those below it keep counts as used there (see `Lending`), but fills
        nobody's guarantee."""
        counted = self._ledger.all_committed_below(queue)
        sure = self._limits.guarantees.get(queue, NO_AMOUNTS)
        names = self._limits.covered_resources(queue, counted, requested) if sure else None
        if names:
            return 0, fair_share.guarantee_utilisation(self._ledger.used(queue), sure, names), queue
        known = self._limits.tree.queues.get(queue)
        return (
            1,
            fair_share.borrowed_share(counted, sure, self._cluster_capacity, known.weight if known else 1.0),
            queue,
        )


def _largest_allowed(gang: Gang, is_allowed: Callable[[Gang], bool]) -> Gang:
    """As many replicas as are allowed, one role after another; the smallest size is."""
    counts = _minimum_counts(gang)
    for index, role in enumerate(gang.roles):
        low, high = counts[index], role.replicas
        while low < high:
            middle = (low + high + 1) // 2
            counts[index] = middle
            low, high = (middle, high) if is_allowed(gang.with_replica_counts(counts)) else (low, middle - 1)
        counts[index] = low
    roles = tuple(replace(role, replicas=count) for role, count in zip(gang.roles, counts, strict=True))
    return replace(gang, roles=roles)


def _minimum_counts(gang: Gang) -> list[int]:
    return [role.required_replicas for role in gang.roles]

"""Tracks how much of the cluster each queue and user uses, and orders queues and users."""

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

MAX_CACHED_REQUESTS = 4096
MAX_CACHED_PLACEMENTS = 16_384  # including ended gangs
QueueKey = tuple[tuple[int, float, QueueName], ...]


class QuotaUsage:
    """The usage of every queue and user, and the checks against it. Mutable; a copy is cheap.

    `AdmissionRules` has the rules (docs/concepts/scheduling.md explains them to users). Resources that no
    queue names have no limit.
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
        # requested amounts, by the identity of the roles, which many gangs share
        self._requests: dict[int, tuple[tuple[Role, ...], Amounts]] = {}
        self._cluster_capacity: Amounts = NO_AMOUNTS
        # shares of users, with the amounts from which they were computed
        self._user_shares: dict[tuple[QueueName, str], tuple[Amounts, float]] = {}
        # amounts of placements, valid while the GPUs of the nodes are unchanged
        self._placement_amounts: dict[GangId, tuple[Placement, Amounts]] = {}
        # also cached by the identity of the roles, until usage changes
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
        """history: past usage, by queue and user."""
        limits = QueueLimits.of(tree)
        usage = cls(limits, UsageLedger(limits), {})
        usage.set_history(history, now)
        usage.set_nodes(nodes)
        usage.charge_all(run.placement for run in running)
        return usage

    def set_history(self, history: Mapping[tuple[QueueName, str], PastUsage], now: datetime) -> None:
        """Sets past usage, weighted by its age."""
        half_life_s = self._limits.tree.half_life_s
        self._history = {
            key: fair_share.historical_share(decayed_share_seconds(past, now, half_life_s), half_life_s)
            for key, past in history.items()
        }

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Sets the current nodes. Shares are shares of the schedulable nodes. Charged amounts stay, and
        removed nodes are remembered until they are credited. A node whose GPUs changed needs a new
        `QuotaUsage`."""
        node_list = list(nodes)
        self._nodes = {**self._nodes, **{node.id: node for node in node_list}}
        self._cluster_capacity, self._user_shares = (
            total_amounts(node for node in node_list if node.schedulable),
            {},
        )
        self._gpu_models, self._requests, self._placement_amounts = GpuModels.of(node_list), {}, {}
        self._clear_caches()

    def set_node(self, before: Node, after: Node) -> None:
        """Replaces one node by a node with the same GPUs."""
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
        """Drops cached results, because usage changed or amounts count differently."""
        self._queue_keys.clear()
        self._refusals.clear()

    def copy(self) -> QuotaUsage:
        result = QuotaUsage(self._limits, self._ledger.copy(), self._history)
        result._nodes, result._gpu_models, result._cluster_capacity = (
            self._nodes,
            self._gpu_models,
            self._cluster_capacity,
        )
        # shared: both have the same GPUs
        result._requests, result._placement_amounts = self._requests, self._placement_amounts
        # shared: both have the same cluster
        result._user_shares = self._user_shares
        return result

    def __eq__(self, other: object) -> bool:
        """Returns whether the same amounts were charged."""
        return self._ledger == other._ledger if isinstance(other, QuotaUsage) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def charge(self, placement: Placement) -> None:
        gang = placement.gang
        self._ledger.add(gang.queue, gang.user, self._amounts_of(placement), 1)
        self._clear_caches()

    def charge_all(self, placements: Iterable[Placement]) -> None:
        """Charges each placement; much cheaper than single calls for many placements."""
        self._apply_all(placements, 1)

    def credit_all(self, placements: Iterable[Placement]) -> None:
        """Exactly undoes `charge_all`."""
        self._apply_all(placements, -1)

    def _apply_all(self, placements: Iterable[Placement], sign: int) -> None:
        """Adds up the amounts of each user in each queue first."""
        sums: dict[tuple[QueueName, str], dict[str, int]] = {}
        for placement in placements:
            gang = placement.gang
            user_amounts = sums.setdefault((gang.queue, gang.user), {})
            for name, amount in self._amounts_of(placement).items():
                user_amounts[name] = user_amounts.get(name, 0) + amount
        for (queue, user), amounts in sums.items():
            self._ledger.add(queue, user, amounts, sign)
        self._clear_caches()

    def credit(self, placement: Placement) -> None:
        """Exactly undoes `charge`."""
        gang = placement.gang
        self._ledger.add(gang.queue, gang.user, self._amounts_of(placement), -1)
        self._clear_caches()

    def _amounts_of(self, placement: Placement) -> Amounts:
        gang = placement.gang.id
        cached = self._placement_amounts.get(gang)
        if cached is not None and cached[0] is placement:
            return cached[1]
        if len(self._placement_amounts) >= MAX_CACHED_PLACEMENTS:
            self._placement_amounts.clear()
        amounts = placed_amounts(placement, self._nodes)
        self._placement_amounts[gang] = placement, amounts
        return amounts

    def used(self, queue: QueueName) -> Amounts:
        """Returns the usage of the queue with its descendants."""
        return self._ledger.used(queue)

    def used_by_user(self, queue: QueueName, user: str) -> Amounts:
        """Returns the usage of one user in the queue, which is a leaf or limits its users."""
        return self._ledger.used_by_user(queue, user)

    def refusal(self, gang: Gang) -> QuotaRefusal | None:
        """Returns why the queue or the user may use no more of what the gang requests, or None."""
        if gang.queue in self._limits.unlimited_leaves:
            return None
        key, roles = (gang.queue, gang.user, id(gang.roles)), gang.roles
        cached = self._refusals.get(key)
        if cached is None or cached[0] is not roles:
            if len(self._refusals) >= MAX_CACHED_REQUESTS:
                self._refusals.clear()
            cached = self._refusals[key] = roles, self._admission_rules.refusal(gang, self.requested(gang))
        return cached[1]

    def is_refused_for(self, gang: Gang, resources: Collection[str]) -> bool:
        """Returns whether `refusal` is for one of these resources; GPU stands for the GPUs of all models."""
        return self._admission_rules.is_refused_for(gang, self.requested(gang), resources)

    def closed_models(self, gang: Gang) -> frozenset[str]:
        """Returns the GPU models, in lower case, of which the queue or the user may not use as many as the
        gang could be placed on. Roles that accept several models may use none of them."""
        if not self._limits.limited_gpu_models.get(gang.queue):
            return frozenset()
        return self._admission_rules.closed_models(self.limit_to_quota(gang))

    def allowed_sizes(self, gang: Gang) -> list[tuple[Gang, frozenset[str]]]:
        """Returns the largest allowed size of the gang with its `closed_models`.

        If a model is closed to an elastic gang, also returns the largest size for which that model is open:
        only the free resources decide which of the two is larger.
        """
        largest = self.limit_to_quota(gang)
        sizes = [(largest, self.closed_models(largest))]
        for model in sorted(sizes[0][1]) if gang.is_elastic else ():
            sized = _largest_allowed(largest, partial(self._is_model_available, model))
            if model not in (closed := self.closed_models(sized)):
                sizes.append((sized, closed))
        return sizes

    def _is_model_available(self, model: str, gang: Gang) -> bool:
        return model not in self.closed_models(gang)

    def limit_to_quota(self, gang: Gang) -> Gang:
        """Returns an elastic gang with no more replicas than its queue and its user may use; other gangs
        unchanged."""
        if not gang.is_elastic or gang.queue in self._limits.unlimited_leaves:
            return gang
        return _largest_allowed(gang, lambda sized: self.refusal(sized) is None)

    def limit_to_guarantee(self, gang: Gang) -> Gang:
        """Returns an elastic gang with no more replicas than the guarantee covers that covers its smallest
        size, of its queue or an ancestor. Without such a guarantee the gang is unchanged. The gang has its
        smallest size if it needs a resource that only other queues have a guarantee for."""
        lending, amounts = self._make_lending, self.requested(gang)
        lender = lending.find_lender(gang.queue, amounts)[0] if gang.is_elastic else None
        if lender is None:
            return gang
        is_reclaimable = not lending.not_reclaimable(lender, amounts)
        return _largest_allowed(
            gang,
            lambda sized: (
                is_reclaimable and lending.is_covered(lender, gang.queue, requested(sized, self._gpu_models))
            ),
        )

    def queue_key(self, queue: QueueName, gang: Gang) -> QueueKey:
        """Returns the sort key of a queue; smaller comes first. For each level from the root: whether the
        gang exceeds the guarantee there; the utilisation of the guarantee if not, else the dominant share
        that is borrowed already, divided by the weight; then the name of the queue."""
        roles = gang.roles
        cached = self._queue_keys.get((queue, id(roles)))
        if cached is not None and cached[0] is roles:
            return cached[1]
        amounts, keys = self.requested(gang), []
        for level in self._limits.path(queue):
            keys.append(self.fair_share_key(level, amounts))
            amounts = self.request_above(level, amounts)
        key = tuple(reversed(keys))
        if len(self._queue_keys) >= MAX_CACHED_REQUESTS:
            self._queue_keys.clear()
        self._queue_keys[queue, id(roles)] = roles, key
        return key

    def requested(self, gang: Gang) -> Amounts:
        """Returns the requested amounts, in the form that `fair_share_key` takes."""
        roles = gang.roles
        cached = self._requests.get(id(roles))
        if cached is not None and cached[0] is roles:
            return cached[1]
        if len(self._requests) >= MAX_CACHED_REQUESTS:
            self._requests.clear()
        amounts = requested(gang, self._gpu_models)
        self._requests[id(roles)] = roles, amounts
        return amounts

    def user_key(self, queue: QueueName, user: str) -> tuple[float]:
        """Returns the sort key of a user; smaller comes first. It is the share of the cluster that the user
        uses now in this queue plus the average past share, whose weight halves with each half-life."""
        key, used = (queue, user), self._ledger.used_by_user(queue, user)
        cached = self._user_shares.get(key)
        if cached is None or cached[0] is not used:  # amounts are replaced, never changed
            cached = self._user_shares[key] = used, dominant_share(used, self._cluster_capacity)
        return (cached[1] + self._history.get(key, 0.0),)

    def unused_non_lendable_elsewhere(self, queue: QueueName, resource: str, total_used: int) -> int:
        """Returns the unused non-lendable amount of all queues except this one, its descendants and its
        ancestors. total_used: the usage of all queues."""
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
        """Returns the amount that a request of this queue demands from its parent: unused non-lendable
        capacity of the queue covers the rest."""
        return self._ledger.request_beyond_non_lendable(queue, requested)

    def is_borrowed(self, running: Running) -> bool:
        """Returns whether the run uses a guaranteed resource of which its queue uses more than its own
        guarantee."""
        return self._make_lending.is_borrowing(
            running.gang.queue, placed_amounts(running.placement, self._nodes)
        )

    def reclaimable_queues(self, gang: Gang) -> frozenset[QueueName]:
        """Returns the queues that the gang may reclaim from: they use what guarantees of its own queue, or of
        an ancestor, lend (see `Lending`)."""
        return self._make_lending.reclaimable_queues(gang.queue, self.requested(gang))

    def find_lender(self, gang: Gang) -> tuple[QueueName | None, Sequence[str]]:
        """Returns the queue that may reclaim capacity for the gang (see `Lending`), and the resources."""
        return self._make_lending.find_lender(gang.queue, self.requested(gang))

    def not_reclaimable(self, gang: Gang) -> frozenset[str]:
        """Returns the requested resources that the gang may reclaim from no queue: other queues have a
        guarantee for them, and its lender has none."""
        lender, amounts = self.find_lender(gang)[0], self.requested(gang)
        return frozenset() if lender is None else self._make_lending.not_reclaimable(lender, amounts)

    def borrowers(self, lender: QueueName, resources: Sequence[str]) -> frozenset[QueueName]:
        """Same as `reclaimable_queues` for a known lender."""
        return self._make_lending.borrowers(lender, resources)

    def is_reclaimable_from(self, queue: QueueName, gang: Gang) -> bool:
        """Returns whether `reclaimable_queues` includes the queue. Cheaper after a credit if only one queue
        is of interest."""
        return self._make_lending.is_reclaimable_from(queue, gang.queue, self.requested(gang))

    def may_reclaim(self, queue: QueueName) -> bool:
        """Returns whether the queue, or an ancestor, has guarantees left to reclaim while another queue uses
        more than its own."""
        return self._make_lending.may_reclaim(queue)

    @property
    def _admission_rules(self) -> AdmissionRules:
        return AdmissionRules(self._limits, self._ledger, self._gpu_models, self._cluster_capacity)

    @property
    def _make_lending(self) -> Lending:
        return Lending(self._limits, self._ledger)

    def fair_share_key(self, queue: QueueName, requested: Amounts) -> tuple[int, float, QueueName]:
        """Returns one level of `queue_key`. Non-lendable capacity of descendants counts as used there (see
        `Lending`), but does not fill a guarantee."""
        committed = self._ledger.all_committed_below(queue)
        guarantee = self._limits.guarantees.get(queue, NO_AMOUNTS)
        names = self._limits.covered_resources(queue, committed, requested) if guarantee else None
        if names:
            return 0, fair_share.guarantee_utilisation(self._ledger.used(queue), guarantee, names), queue
        found_queue = self._limits.tree.queues.get(queue)
        return (
            1,
            fair_share.borrowed_share(
                committed, guarantee, self._cluster_capacity, found_queue.weight if found_queue else 1.0
            ),
            queue,
        )


def _largest_allowed(gang: Gang, is_allowed: Callable[[Gang], bool]) -> Gang:
    """Returns the gang with as many replicas as are allowed, role by role. The smallest size is always
    allowed."""
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

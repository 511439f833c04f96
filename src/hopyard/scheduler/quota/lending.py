"""Who uses what another is sure of, and has to give it back when it is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU, GPU_OF, Amounts
from hopyard.scheduler.quota.queue_limits import NO_AMOUNTS, QueueLimits
from hopyard.scheduler.quota.usage_ledger import UsageLedger


@dataclass(frozen=True, slots=True)
class Lending:
    """The debts between queues as the ledger stands.

    A gang's lender is the lowest queue on its path whose guarantee covers the gang beside what is used there.
    Those outside of the lender owe it that use more than their guarantee at every level up to where the two
    meet, of one resource that the lender is sure of and the gang asks for. So nobody owes who did not borrow,
    and giving back brings no level below its guarantee by more than one run; and if what the lender is sure
    of is in use elsewhere, somebody owes it, since where a queue is above its guarantee, one right below it
    is. Who takes back is within its guarantee then and owes nobody outside of the lender, so no two take the
    same from each other in turn. (After reclaiming within hierarchical cohorts of Kueue.) What a queue keeps
    (lend_limit) counts as used by it: who uses what is left of a guarantee of which another below keeps all
    uses what somebody else is sure of.
    """

    limits: QueueLimits
    ledger: UsageLedger

    def is_borrowing(self, queue: QueueName, amounts: Amounts) -> bool:
        """Whether the queue uses more than its guarantee, of one of these resources and of what some queue is
        sure of."""
        sure, counted = self.limits.guarantees.get(queue, NO_AMOUNTS), self.ledger.all_committed_below(queue)
        return any(
            counted.get(name, 0) > sure.get(name, 0)
            for name in self.limits.guaranteed_resources
            if amounts.get(name)
        )

    def reclaimable_queues(self, queue: QueueName, requested: Amounts) -> frozenset[QueueName]:
        """Queues with gangs of their own that owe a gang in this queue that asks for so much."""
        lender, names = self.find_lender(queue, requested)
        return frozenset() if lender is None else self.borrowers(lender, names)

    def borrowers(self, lender: QueueName, resources: Sequence[str]) -> frozenset[QueueName]:
        """Queues with gangs of their own that use what the lender is sure of, of one of these resources."""
        return frozenset(
            debtor
            for debtor in self.ledger.active_queues()
            if self._is_borrower_of(debtor, lender, resources)
        )

    def is_covered(self, lender: QueueName, queue: QueueName, requested: Amounts) -> bool:
        """Whether what a gang in this queue, below the lender, asks for is within the lender's guarantee,
        beside what is used."""
        return any(names for level, names in self._covered_levels(queue, requested) if level == lender)

    def is_reclaimable_from(self, borrower: QueueName, queue: QueueName, requested: Amounts) -> bool:
        """Whether one queue is among `owed`."""
        lender, names = self.find_lender(queue, requested)
        return lender is not None and self._is_borrower_of(borrower, lender, names)

    def may_reclaim(self, queue: QueueName) -> bool:
        """Whether it, or one above it, has guarantees left that it may take back, while some queue uses more
        than its own. Quick: where it says no, nobody owes any gang of the queue."""
        limits, left = self.limits, False
        for level in limits.paths.get(queue, ()):
            used = self.ledger.used(level)
            left = left or any(used.get(name, 0) < sure for name, sure in limits.guarantees[level].items())
            if left and limits.tree.queues[level].reclaims:
                return any(
                    self.is_borrowing(other, self.ledger.all_committed_below(other))
                    for other in self.ledger.active_queues()
                )
        return False

    def find_lender(self, queue: QueueName, requested: Amounts) -> tuple[QueueName | None, Sequence[str]]:
        """Of a gang in this queue that asks for so much, and the resources that the lender is sure of."""
        for level, names in self._covered_levels(queue, requested):
            if names and self.limits.tree.queues[level].reclaims:
                return level, names
        return None, ()

    def not_reclaimable(self, lender: QueueName, requested: Amounts) -> frozenset[str]:
        """Resources that are asked for and that others are sure of, but not the lender: it has none of them
        to take back. GPUs are one resource here, whatever their model."""
        sure = {
            _resource_family(name)
            for name, amount in self.limits.guarantees.get(lender, NO_AMOUNTS).items()
            if amount
        }
        others = {_resource_family(name) for name in self.limits.guaranteed_resources}
        return frozenset(
            _resource_family(name)
            for name, amount in requested.items()
            if amount and _resource_family(name) in others - sure
        )

    def _covered_levels(
        self, queue: QueueName, requested: Amounts
    ) -> Iterator[tuple[QueueName, Sequence[str]]]:
        """For each level of its path: of what the level is sure of and the gang asks for, if it has
        guarantees left for all of that; else nothing. What a queue below keeps and does not use is there for
        the gang, and no more of the level then."""
        limits, ledger = self.limits, self.ledger
        for level in limits.paths.get(queue, ()):
            yield level, limits.covered_resources(level, ledger.all_committed_below(level), requested)
            requested = ledger.request_beyond_non_lendable(level, requested)

    def _is_borrower_of(self, borrower: QueueName, lender: QueueName, resources: Sequence[str]) -> bool:
        above, levels = self.limits.path(lender), self.limits.path(borrower)
        if lender in levels or borrower in above:
            return False
        sure, counted = self.limits.guarantees, self.ledger.committed
        apart = [(level, sure.get(level, NO_AMOUNTS)) for level in levels if level not in above]
        return any(all(counted(level, name) > own.get(name, 0) for level, own in apart) for name in resources)


def _resource_family(resource: str) -> str:
    return GPU if resource.startswith(GPU_OF) else resource

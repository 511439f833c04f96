"""Finds which queues use what other queues have a guarantee for, and can be made to return it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU, GPU_OF, Amounts
from hopyard.scheduler.quota.queue_limits import NO_AMOUNTS, QueueLimits
from hopyard.scheduler.quota.usage_ledger import UsageLedger


@dataclass(frozen=True, slots=True)
class Lending:
    """Which queues borrow from which, by the current ledger.

    The lender of a gang is the lowest queue on its path whose guarantee covers the gang beside the usage
    there. A queue outside the lender borrows from it if it uses more than its guarantee at every level up to
    their common ancestor. This must hold for one resource that the lender has a guarantee for and the gang
    requests. So a queue that does not borrow owes nothing, and reclaiming brings no level below its guarantee
    by more than one run. If the guarantee of the lender is in use elsewhere, there is a borrower: if a queue
    is above its guarantee, one of its children is. A queue that reclaims is then within its guarantee and
    owes nothing outside of the lender, so two queues never reclaim the same capacity from each other in turn.
    (After reclaiming within hierarchical cohorts of Kueue.) The non-lendable part of a guarantee (lend_limit)
    counts as used by its queue. If all that is left of a guarantee is non-lendable in a queue below, another
    user of it borrows.
    """

    limits: QueueLimits
    ledger: UsageLedger

    def is_borrowing(self, queue: QueueName, amounts: Amounts) -> bool:
        """Returns whether the queue uses more than its guarantee, of one of these resources that any queue
        has a guarantee for."""
        guarantee, committed = (
            self.limits.guarantees.get(queue, NO_AMOUNTS),
            self.ledger.all_committed_below(queue),
        )
        return any(
            committed.get(name, 0) > guarantee.get(name, 0)
            for name in self.limits.guaranteed_resources
            if amounts.get(name)
        )

    def reclaimable_queues(self, queue: QueueName, requested: Amounts) -> frozenset[QueueName]:
        """Returns the queues with gangs of their own from which a gang in this queue with this request may
        reclaim."""
        lender, names = self.find_lender(queue, requested)
        return frozenset() if lender is None else self.borrowers(lender, names)

    def borrowers(self, lender: QueueName, resources: Sequence[str]) -> frozenset[QueueName]:
        """Returns the queues with gangs of their own that borrow one of these resources from the lender."""
        return frozenset(
            queue for queue in self.ledger.active_queues() if self._is_borrower_of(queue, lender, resources)
        )

    def is_covered(self, lender: QueueName, queue: QueueName, requested: Amounts) -> bool:
        """Returns whether the request of a gang in this queue, below the lender, is within the lender's
        guarantee, beside the usage."""
        return any(names for level, names in self._covered_levels(queue, requested) if level == lender)

    def is_reclaimable_from(self, borrower: QueueName, queue: QueueName, requested: Amounts) -> bool:
        """Returns whether `borrower` is among `reclaimable_queues`."""
        lender, names = self.find_lender(queue, requested)
        return lender is not None and self._is_borrower_of(borrower, lender, names)

    def may_reclaim(self, queue: QueueName) -> bool:
        """Returns whether the queue or an ancestor has unused guarantees that it may reclaim, while any queue
        uses more than its own. This is a quick check: if it is false, no gang of the queue may reclaim."""
        limits, has_unused = self.limits, False
        for level in limits.paths.get(queue, ()):
            used = self.ledger.used(level)
            has_unused = has_unused or any(
                used.get(name, 0) < guaranteed for name, guaranteed in limits.guarantees[level].items()
            )
            if has_unused and limits.tree.queues[level].reclaims:
                return any(
                    self.is_borrowing(other, self.ledger.all_committed_below(other))
                    for other in self.ledger.active_queues()
                )
        return False

    def find_lender(self, queue: QueueName, requested: Amounts) -> tuple[QueueName | None, Sequence[str]]:
        """Returns the lender of a gang in this queue with this request, and the resources that its guarantee
        covers."""
        for level, names in self._covered_levels(queue, requested):
            if names and self.limits.tree.queues[level].reclaims:
                return level, names
        return None, ()

    def not_reclaimable(self, lender: QueueName, requested: Amounts) -> frozenset[str]:
        """Returns the requested resources for which other queues have a guarantee, but not the lender: it has
        nothing of them to reclaim. All GPU models are one resource here."""
        lender_resources = {
            _resource_family(name)
            for name, amount in self.limits.guarantees.get(lender, NO_AMOUNTS).items()
            if amount
        }
        guaranteed_resources = {_resource_family(name) for name in self.limits.guaranteed_resources}
        return frozenset(
            _resource_family(name)
            for name, amount in requested.items()
            if amount and _resource_family(name) in guaranteed_resources - lender_resources
        )

    def _covered_levels(
        self, queue: QueueName, requested: Amounts
    ) -> Iterator[tuple[QueueName, Sequence[str]]]:
        """Yields each level of the path with the requested resources that its guarantee covers; an empty list
        if its unused guarantees do not cover all of them. The unused non-lendable amount of a lower queue is
        available to the gang, so it reduces the request to higher levels."""
        limits, ledger = self.limits, self.ledger
        for level in limits.paths.get(queue, ()):
            yield level, limits.covered_resources(level, ledger.all_committed_below(level), requested)
            requested = ledger.request_beyond_non_lendable(level, requested)

    def _is_borrower_of(self, borrower: QueueName, lender: QueueName, resources: Sequence[str]) -> bool:
        lender_path, borrower_path = self.limits.path(lender), self.limits.path(borrower)
        if lender in borrower_path or borrower in lender_path:
            return False
        guarantees, committed = self.limits.guarantees, self.ledger.committed
        unshared_levels = [
            (level, guarantees.get(level, NO_AMOUNTS)) for level in borrower_path if level not in lender_path
        ]
        return any(
            all(committed(level, name) > guarantee.get(name, 0) for level, guarantee in unshared_levels)
            for name in resources
        )


def _resource_family(resource: str) -> str:
    return GPU if resource.startswith(GPU_OF) else resource

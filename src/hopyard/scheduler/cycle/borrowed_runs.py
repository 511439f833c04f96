"""Finds the runs that a queue started beyond its guarantee, with borrowed capacity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from hopyard.domain.amounts import placed_amounts
from hopyard.domain.cluster import Node, Running
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import GPU_OF, QueueTree
from hopyard.scheduler.quota.queue_limits import QueueLimits
from hopyard.scheduler.quota.usage_ledger import UsageLedger

PlacementOrder = tuple[datetime, int, datetime, GangId]
GuaranteedAmounts = list[tuple[str, int]]  # of resources that guarantees name
BorrowingEntry = tuple[PlacementOrder, GuaranteedAmounts, QueueName]  # one per run; orders are unique


class BorrowedRuns:
    """Computes the borrowed runs of each queue, and caches them until the queue is invalidated.

    The first runs of a queue are covered by its guarantee, and stay covered while other runs come and go.
    Later runs are borrowed. In a queue with children, runs within the guarantees of the children are covered
    before runs that the children borrowed. Otherwise one child could use up the guarantee of another, and
    neither would have borrowed from queues outside. As a result, a gang that reclaimed capacity is never
    preempted by the queue that it reclaimed from, however much its own queue borrows later. Runs that were
    asked to stop count as ended. A run cannot use the part of a guarantee that is not lent (lend_limit),
    unless its own queue or an ancestor holds that part.
    """

    def __init__(
        self,
        queues: QueueTree,
        nodes: Mapping[NodeId, Node],
        running: Mapping[QueueName, Mapping[GangId, Running]],
    ) -> None:
        """running: the runs by queue; not copied."""
        self._running = running
        limits = QueueLimits.of(queues)
        # the path of a removed queue is the queue itself, without a guarantee: all that it uses is borrowed
        self._path = limits.path
        self._guarantees, self._non_lendable_names, self._empty_ledger = (
            limits.guarantees,
            limits.non_lendable_names,
            UsageLedger(limits),
        )
        self._guaranteed_resources = limits.guaranteed_resources
        by_model = any(name.startswith(GPU_OF) for name in self._guaranteed_resources)
        # without named models, GPUs need not be examined
        self._gpu_nodes: Mapping[NodeId, Node] = nodes if by_model else {}
        self._borrowed_by_level: dict[QueueName, frozenset[GangId]] = {}
        self._usage_by_queue: dict[QueueName, dict[GangId, GuaranteedAmounts]] = {}
        # runs directly in a queue, in the order of their placement
        self._entries_by_queue: dict[QueueName, list[BorrowingEntry]] = {}

    def invalidate_queue(self, queue: QueueName) -> None:
        """Drops cached results: runs of this queue started, ended, or are being stopped."""
        self._entries_by_queue.pop(queue, None)
        for level in self._path(queue) if self._borrowed_by_level else ():
            self._borrowed_by_level.pop(level, None)

    def runs_borrowed_from(self, queue: QueueName, lender: QueueName) -> list[Running]:
        """Returns runs of a queue that are beyond the guarantee at every level that it does not share with
        another queue."""
        lender_path = self._path(lender)
        borrowed_by_level = [
            self.borrowed_by(level) for level in self._path(queue) if level not in lender_path
        ]
        runs = self._running.get(queue, {})
        if not borrowed_by_level:
            return []
        return [runs[gang] for gang in runs.keys() & frozenset.intersection(*borrowed_by_level)]

    def borrowed_by(self, level: QueueName) -> frozenset[GangId]:
        """Returns the runs in all queues below it that were placed after its guarantee was used up. Older
        runs are counted first."""
        borrowed = self._borrowed_by_level.get(level)
        if borrowed is None:
            borrowed = self._borrowed_by_level[level] = frozenset(
                self._borrowed_among(level, self._entries_below(level))
            )
        return borrowed

    def _entries_below(self, level: QueueName) -> list[BorrowingEntry]:
        """Returns the entries in the order in which the guarantee covers them."""
        within: list[BorrowingEntry] = []
        beyond: list[BorrowingEntry] = []
        for queue in self._running:
            if queue == level:
                within += self._own_entries(queue)
            elif level in (levels := self._path(queue)):
                borrowed = self.borrowed_by(levels[levels.index(level) - 1])
                for entry in self._own_entries(queue):
                    (beyond if entry[0][-1] in borrowed else within).append(entry)
        within.sort()  # a few sorted lists in sequence: sorting costs little more than a merge
        beyond.sort()
        return within + beyond

    def _own_entries(self, queue: QueueName) -> list[BorrowingEntry]:
        entries = self._entries_by_queue.get(queue)
        if entries is None:
            runs = self._running.get(queue, {}).values()
            entries = self._entries_by_queue[queue] = sorted(
                (_placement_order(run), self._guaranteed_amounts(run), queue)
                for run in runs
                if not run.stopping
            )
        return entries

    def _borrowed_among(self, level: QueueName, entries: Iterable[BorrowingEntry]) -> Iterable[GangId]:
        guarantee, ledger = self._guarantees.get(level, {}), self._empty_ledger
        remaining = {
            name: guarantee.get(name, 0)
            - (ledger.committed_below(level, name) if name in self._non_lendable_names else 0)
            for name in self._guaranteed_resources
        }
        unused: dict[tuple[QueueName, str], int] = {}  # unused non-lendable amounts of queues below
        for (_, _, _, gang), amounts, queue in entries:
            from_non_lendable = (
                self._non_lendable_part(queue, level, amounts, unused) if self._non_lendable_names else {}
            )
            from_guarantee = (
                [(name, amount - sum(from_non_lendable.get(name, {}).values())) for name, amount in amounts]
                if from_non_lendable
                else amounts
            )
            for name, amount in from_guarantee:
                if amount > remaining[name]:
                    yield gang
                    break
            else:
                for name, amount in from_guarantee:
                    remaining[name] -= amount
                for name, parts in from_non_lendable.items():
                    for holder, amount_taken in parts.items():
                        unused[holder, name] -= amount_taken

    def _non_lendable_part(
        self,
        queue: QueueName,
        level: QueueName,
        amounts: GuaranteedAmounts,
        unused: dict[tuple[QueueName, str], int],
    ) -> dict[str, dict[QueueName, int]]:
        """Returns by resource what is covered by the unused non-lendable guarantees of its queue and of
        ancestors below that level."""
        covered: dict[str, dict[QueueName, int]] = {}
        for name, remaining in amounts:
            for holder in self._path(queue):
                if holder == level:
                    break
                amount_taken = min(
                    remaining,
                    unused.setdefault((holder, name), self._empty_ledger.unused_non_lendable(holder, name)),
                )
                if amount_taken:
                    covered.setdefault(name, {})[holder] = amount_taken
                    remaining -= amount_taken  # noqa: PLW2901 - the rest is taken from the ancestors
        return covered

    def _guaranteed_amounts(self, running: Running) -> GuaranteedAmounts:
        """Returns the amounts of resources that guarantees name. Cached: the resources of a gang do not
        change while it holds them, and neither do the GPUs of its nodes during the life of this object."""
        of_queue = self._usage_by_queue.setdefault(running.gang.queue, {})
        cached = of_queue.get(running.gang.id)
        if cached is None:
            amounts = placed_amounts(running.placement, self._gpu_nodes)
            cached = of_queue[running.gang.id] = [
                (name, amount) for name, amount in amounts.items() if name in self._guaranteed_resources
            ]
        return cached

    def forget_run(self, running: Running) -> None:
        """Drops the cached amounts of a run."""
        of_queue = self._usage_by_queue.get(running.gang.queue, {})
        of_queue.pop(running.gang.id, None)
        self.invalidate_queue(running.gang.queue)


def _placement_order(running: Running) -> PlacementOrder:
    """Sorts runs that were placed at one time by their order in the queue."""
    gang = running.gang
    return running.placed_at, -gang.priority, gang.submitted_at, gang.id

"""Explains in one sentence why another queue gets more of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopyard.domain.amounts import total_amounts
from hopyard.domain.cluster import Snapshot
from hopyard.domain.effective_limits import queue_path
from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, Amounts
from hopyard.scheduler.explain.amount_text import format_amount, format_amount_without_unit
from hopyard.scheduler.explain.quota_messages import quota_message
from hopyard.scheduler.quota.fair_share import borrowed_share
from hopyard.scheduler.quota.queue_report import QueueReport, queue_report
from hopyard.scheduler.quota.quota_usage import QuotaUsage


@dataclass(frozen=True, slots=True)
class _Pair:
    """A queue and a sibling that uses more. resource: of which the sibling uses the largest part of the
    cluster. head: the pending gang of the queue with the highest priority; None if none waits.
    is_reclaimable: the sibling, or a queue below it, borrows what the head may reclaim."""

    queue: QueueReport
    other: QueueReport
    resource: str
    head: Gang | None
    usage: QuotaUsage
    cluster: Amounts
    is_reclaimable: bool

    def amounts(self, amounts: Amounts, limit: Amounts | None = None) -> str:
        """Returns "3 GPUs", or with a limit "3 of 4 GPUs"."""
        amount = amounts.get(self.resource, 0)
        if limit is None:
            return format_amount(self.resource, amount)
        of_limit = format_amount(self.resource, limit.get(self.resource, 0))
        return f"{format_amount_without_unit(self.resource, amount)} of {of_limit}"


def explain_share(snapshot: Snapshot, queue: QueueName) -> str:
    """Returns one sentence: why the sibling with the largest share gets more than the queue, or that none
    does. If no sibling has more, its parent is compared with the parent's siblings, and so on."""
    tree = snapshot.queues
    reports = {report.queue.name: report for report in queue_report(snapshot)}
    cluster = total_amounts(node for node in snapshot.nodes.values() if node.schedulable)
    usage = QuotaUsage.of(tree, snapshot.nodes.values(), snapshot.running, snapshot.past_usage, snapshot.now)
    for level in queue_path(tree, queue) or (queue,):
        own = reports[level]
        siblings = [
            report
            for report in reports.values()
            if report.queue.parent == own.queue.parent and report.depth == own.depth
        ]
        other = max(siblings, key=lambda report: (report.share, report.queue.name != level))
        if other.share > own.share:
            head = _head(snapshot, level)
            is_reclaimable = head is not None and any(
                other.queue.name in queue_path(tree, borrower) for borrower in usage.reclaimable_queues(head)
            )
            resource = _dominant_resource(other.used, cluster)
            return _compare(_Pair(own, other, resource, head, usage, cluster, is_reclaimable))
    return _largest_message(reports[queue], cluster, has_others=len(reports) > 1)


def _compare(pair: _Pair) -> str:
    own, other = pair.queue.queue.name, pair.other.queue.name
    facts = f"{other} uses {pair.amounts(pair.other.used)}, and {own} {pair.amounts(pair.queue.used)}"
    return f"{facts}, because {_reason(pair)}."


def _reason(pair: _Pair) -> str:
    """The rules in the order in which they decide: demand, limits, guarantees, reclaims, weights."""
    own, other, head = pair.queue.queue.name, pair.other.queue.name, pair.head
    if head is None:
        return f"no run waits in {own}"
    refusal = pair.usage.refusal(head)
    if refusal is not None:
        return f"the next run of {own} {quota_message(refusal.cause)}"
    if pair.other.guarantee.get(pair.resource, 0) and not pair.other.borrowed.get(pair.resource, 0):
        owned = f"{other} uses {pair.amounts(pair.other.used, pair.other.guarantee)} of its guarantee"
        if pair.queue.guarantee.get(pair.resource, 0):
            return f"{owned}, and the guarantee of {own} is {pair.amounts(pair.queue.guarantee)}"
        return f"{owned}, and {own} has no guarantee"
    if pair.is_reclaimable:
        return _reclaim_clause(pair)
    return _weight_clause(pair)


def _reclaim_clause(pair: _Pair) -> str:
    own, other = pair.queue.queue.name, pair.other.queue.name
    return (
        f"{other} borrows {pair.amounts(pair.other.borrowed)}, and {own} reclaims from it what the next run "
        "of its guarantee needs"
    )


def _weight_clause(pair: _Pair) -> str:
    own, other = pair.queue, pair.other
    shares = {
        report.queue.name: borrowed_share(report.used, report.guarantee, pair.cluster, report.queue.weight)
        for report in (own, other)
    }
    own_share, other_share = shares[own.queue.name], shares[other.queue.name]
    numbers = (
        f"{own_share:.1%} for {own.queue.name} (weight {own.queue.weight:g}) and {other_share:.1%} for "
        f"{other.queue.name} (weight {other.queue.weight:g})"
    )
    if own_share <= other_share:
        return (
            f"its runs started earlier: {own.queue.name} is served first as soon as capacity is free, since "
            f"its use beyond the guarantee divided by its weight is smaller, {numbers}"
        )
    return (
        "the queue with the smaller use beyond its guarantee divided by its weight is served first, "
        f"{numbers}"
    )


def _largest_message(report: QueueReport, cluster: Amounts, *, has_others: bool) -> str:
    name = report.queue.name
    if not report.running:
        return f"No queue beside {name} uses anything." if has_others else f"{name} is the only queue."
    used = format_amount(resource := _dominant_resource(report.used, cluster), report.used.get(resource, 0))
    if not has_others:
        return f"{name} uses {used} and is the only queue."
    return f"No queue beside {name} gets more: it uses {used}, {report.share:.0%} of the cluster."


def _dominant_resource(used: Amounts, cluster: Amounts) -> str:
    """Returns the resource of which the largest part of the cluster is used; GPUs of all models together."""
    shares: Mapping[str, float] = {
        name: amount / cluster[name]
        for name, amount in used.items()
        if cluster.get(name) and not name.startswith(GPU_OF)
    }
    if not shares:
        return GPU if cluster.get(GPU) else CPU
    return max(shares, key=lambda name: (shares[name], name == GPU, name))


def _head(snapshot: Snapshot, queue: QueueName) -> Gang | None:
    """Returns a pending gang of the queue or below it: of the highest priority the one that waits
    longest."""
    waiting: Sequence[Gang] = [
        gang
        for gang in snapshot.pending
        if queue in (queue_path(snapshot.queues, gang.queue) or (gang.queue,))
    ]
    return min(waiting, key=lambda gang: (-gang.priority, gang.submitted_at, gang.id), default=None)

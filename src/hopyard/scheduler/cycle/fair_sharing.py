"""Fair sharing: selects the queue whose gang is examined next."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts, Queue
from hopyard.scheduler.quota.quota_usage import QuotaUsage


class _QueueNode:
    """One queue. head: the first gang of the queues below it, with its request; None if no gang is
    pending."""

    __slots__ = ("children", "head", "key", "name", "parent", "requested")

    def __init__(self, name: QueueName, parent: _QueueNode | None) -> None:
        self.name, self.parent = name, parent
        self.children: list[_QueueNode] = []
        self.head: Gang | None = None
        self.requested: Amounts = {}
        self.key: tuple[int, float, QueueName] = (0, 0.0, name)


class FairSharingOrder:
    """A tournament from the leaves to the root, after fair sharing in Kueue's hierarchical cohorts. Among the
    children of a queue, the one with the smallest `QuotaUsage.fair_share_key` wins. A charge moves only the
    charged queue and its ancestors."""

    def __init__(self, queues: Mapping[QueueName, Queue], quota_usage: QuotaUsage) -> None:
        """queues: parents before children."""
        self._quota_usage = quota_usage
        self._nodes: dict[QueueName, _QueueNode] = {}
        self._roots: list[_QueueNode] = []
        for name, queue in queues.items():
            parent = self._nodes[queue.parent] if queue.parent is not None else None
            node = self._nodes[name] = _QueueNode(name, parent)
            (self._roots if parent is None else parent.children).append(node)

    def update_heads(self, heads: Mapping[QueueName, Gang | None]) -> None:
        """Updates these queues, because their first gang changed or usage was charged to them."""
        changed: dict[QueueName, _QueueNode] = {}
        for queue, gang in heads.items():
            node = self._nodes[queue]
            if gang is not node.head and gang is not None:
                node.requested = self._quota_usage.requested(gang)
            node.head = gang
            self._recompute_key(node)
            if node.parent is not None:
                changed[node.parent.name] = node.parent
        while changed:  # a node is recomputed if a child changes later: the last result is valid
            current, changed = changed, {}
            for parent in current.values():
                best = _first_node(parent.children)
                parent.head = None if best is None else best.head
                if best is not None:
                    parent.requested = self._quota_usage.request_above(best.name, best.requested)
                self._recompute_key(parent)
                if parent.parent is not None:
                    changed[parent.parent.name] = parent.parent

    def head(self) -> Gang | None:
        """Returns the first gang of all queues."""
        best = _first_node(self._roots)
        return None if best is None else best.head

    def _recompute_key(self, node: _QueueNode) -> None:
        if node.head is not None:
            node.key = self._quota_usage.fair_share_key(node.name, node.requested)


def _first_node(nodes: list[_QueueNode]) -> _QueueNode | None:
    best: _QueueNode | None = None
    for node in nodes:
        if node.head is not None and (best is None or node.key < best.key):
            best = node
    return best

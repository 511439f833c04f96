from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import PastUsage, QueueTree


class QueueStore(Protocol):
    """The tree of queues as it was declared, and what was used through it."""

    async def tree(self) -> QueueTree:
        """SINGLE_QUEUE_TREE before anything was declared."""
        ...

    async def replace(self, tree: QueueTree, /) -> None:
        """Put this tree in the place of the one that stands; it was checked before
        (`config.queues.queue_file`). Raises Conflict, with nothing changed, when runs wait in a queue that it
        does not have or that is no leaf of it."""

    async def count_waiting(self) -> Mapping[QueueName, int]:
        """How many runs wait in each queue that has any."""
        ...

    async def past_usage(self) -> Mapping[tuple[QueueName, str], PastUsage]:
        """What attempts that are over have used, by queue and user, each decayed to the time that it names.
        What live ones use since they began is not in it."""
        ...

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import PastUsage, QueueTree


class QueueStore(Protocol):
    """The declared tree of queues, and the past usage of queues."""

    async def tree(self) -> QueueTree:
        """Returns the tree; SINGLE_QUEUE_TREE before one is declared."""
        ...

    async def replace(self, tree: QueueTree, /) -> None:
        """Replaces the tree by this one, which was validated before (`config.queues.queue_file`).

        Raises Conflict, with nothing changed, if runs wait in a queue that is missing in the tree or is no
        leaf of it.
        """

    async def count_waiting(self) -> Mapping[QueueName, int]:
        """Returns the number of waiting runs in each queue that has any."""
        ...

    async def past_usage(self) -> Mapping[tuple[QueueName, str], PastUsage]:
        """Returns the usage of ended attempts by queue and user, each decayed to its `at`. The usage of live
        attempts is not included."""
        ...

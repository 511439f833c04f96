"""Tracks how much of their queues' limits gangs use, so that a plan can be checked again."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.effective_limits import maximum_amounts, queue_path
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, SINGLE_QUEUE_TREE, Amounts, QueueTree
from hopyard.domain.resources import WHOLE_GPU

_GIB = 2**30


class QuotaCheck:
    """Sums by queue at every level, and by user where a queue limits its users. Mutable.

    It ignores `Queue.lend_limit`, which only the planner considers. The check at commit ensures that no queue
    and no user exceeds its maximum.
    """

    def __init__(self, tree: QueueTree = SINGLE_QUEUE_TREE) -> None:
        # the use of each queue and user
        self._amounts: dict[tuple[QueueName, str], dict[str, int]] = {}
        self.set_tree(tree)

    def set_tree(self, tree: QueueTree) -> None:
        self.tree, self._maximums = tree, maximum_amounts(tree)
        self._paths: dict[QueueName, tuple[QueueName, ...]] = {}
        self._queues: dict[QueueName, dict[str, int]] = {}
        self._users: dict[tuple[QueueName, str], dict[str, int]] = {}
        for (queue, user), amounts in self._amounts.items():
            self._add_to_ancestors(queue, user, amounts, 1)

    def charge(self, queue: QueueName, user: str, amounts: Amounts, sign: int = 1) -> None:
        """Adds the use of a gang; the sign -1 exactly undoes it."""
        _add(self._amounts.setdefault((queue, user), {}), amounts, sign)
        self._add_to_ancestors(queue, user, amounts, sign)

    def find_violation(self, queue: QueueName, user: str, amounts: Amounts) -> str | None:
        """Returns a description of the limit that these additional amounts would exceed, at any level; else
        None."""
        for level in self._path(queue):
            limits = self._maximums[level]
            if (
                limits
                and (exceeded := _exceeded_limit(limits, self._queues.get(level, {}), amounts)) is not None
            ):
                return (
                    f"queue {level} may use at most {_format_amount(exceeded, limits[exceeded])}, and uses "
                    f"{_format_amount(exceeded, self._queues.get(level, {}).get(exceeded, 0))}"
                )
            limits = self.tree.queues[level].user_limit
            used = self._users.get((level, user), {})
            if limits and (exceeded := _exceeded_limit(limits, used, amounts)) is not None:
                return (
                    f"one user may use at most {_format_amount(exceeded, limits[exceeded])} in queue "
                    f"{level}, and {user} uses {_format_amount(exceeded, used.get(exceeded, 0))}"
                )
        return None

    def _path(self, queue: QueueName) -> tuple[QueueName, ...]:
        path = self._paths.get(queue)
        if path is None:
            path = self._paths[queue] = queue_path(self.tree, queue)
        return path

    def _add_to_ancestors(self, queue: QueueName, user: str, amounts: Amounts, sign: int) -> None:
        for level in self._path(queue):
            _add(self._queues.setdefault(level, {}), amounts, sign)
            if self.tree.queues[level].user_limit:
                _add(self._users.setdefault((level, user), {}), amounts, sign)


def _exceeded_limit(limits: Amounts, used: Mapping[str, int], requested: Amounts) -> str | None:
    return next(
        (
            name
            for name, amount in requested.items()
            if name in limits and used.get(name, 0) + amount > limits[name]
        ),
        None,
    )


def _add(totals: dict[str, int], amounts: Amounts, sign: int) -> None:
    for name, amount in amounts.items():
        totals[name] = totals.get(name, 0) + sign * amount


def _format_amount(name: str, amount: int) -> str:
    if name == CPU:
        return f"{amount / 1000:g} CPUs"
    if name == MEMORY:
        return f"{amount / _GIB:g} GiB of memory"
    if name == GPU or name.startswith(GPU_OF):
        return f"{amount / WHOLE_GPU:g} {name.removeprefix(GPU_OF) + ' ' if name != GPU else ''}GPUs"
    return f"{amount} {name}"

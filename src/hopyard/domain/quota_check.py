"""What gangs use of their queues' limits, kept up to date as they come and go, so that a plan can be checked
once more."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.effective_limits import maximum_amounts, queue_path
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, SINGLE_QUEUE_TREE, Amounts, QueueTree
from hopyard.domain.resources import WHOLE_GPU

_GIB = 2**30


class QuotaCheck:
    """Mutable. Sums by queue at every level, and by user where a queue limits its users.

    What a queue keeps of its guarantee (`Queue.lend_limit`) is not looked at: that is for who plans; who
    commits sees that no queue and no user has more than it may have at most.
    """

    def __init__(self, tree: QueueTree = SINGLE_QUEUE_TREE) -> None:
        # what the gangs of each queue and user use
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
        """Count what a gang uses; with the sign -1, exactly undo it."""
        _add(self._amounts.setdefault((queue, user), {}), amounts, sign)
        self._add_to_ancestors(queue, user, amounts, sign)

    def find_violation(self, queue: QueueName, user: str, amounts: Amounts) -> str | None:
        """Which limit this much more would break, at any level; None where it breaks none."""
        for level in self._path(queue):
            limits = self._maximums[level]
            if limits and (over := _exceeded_limit(limits, self._queues.get(level, {}), amounts)) is not None:
                return (
                    f"queue {level} may use at most {_format_amount(over, limits[over])}, and uses "
                    f"{_format_amount(over, self._queues.get(level, {}).get(over, 0))}"
                )
            limits = self.tree.queues[level].user_limit
            used = self._users.get((level, user), {})
            if limits and (over := _exceeded_limit(limits, used, amounts)) is not None:
                return (
                    f"one user may use at most {_format_amount(over, limits[over])} in queue {level}, and "
                    f"{user} uses {_format_amount(over, used.get(over, 0))}"
                )
        return None

    def _path(self, queue: QueueName) -> tuple[QueueName, ...]:
        found = self._paths.get(queue)
        if found is None:
            found = self._paths[queue] = queue_path(self.tree, queue)
        return found

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

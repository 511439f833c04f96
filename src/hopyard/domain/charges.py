"""What gangs use of their queues' limits, kept up to date as they come and go, so that a plan can be checked
once more."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, ONE_QUEUE, Amounts, QueueTree
from hopyard.domain.quota import most, path
from hopyard.domain.resources import WHOLE_GPU

_GIB = 2**30


class Charges:
    """Mutable. Sums by queue at every level, and by user where a queue limits its users.

    What a queue keeps of its guarantee (`Queue.lend_limit`) is not looked at: that is for who plans; who
    commits sees that no queue and no user has more than it may have at most.
    """

    def __init__(self, tree: QueueTree = ONE_QUEUE) -> None:
        # what the gangs of each queue and user use
        self._of: dict[tuple[QueueName, str], dict[str, int]] = {}
        self.set_tree(tree)

    def set_tree(self, tree: QueueTree) -> None:
        self.tree, self._most = tree, most(tree)
        self._paths: dict[QueueName, tuple[QueueName, ...]] = {}
        self._queues: dict[QueueName, dict[str, int]] = {}
        self._users: dict[tuple[QueueName, str], dict[str, int]] = {}
        for (queue, user), amounts in self._of.items():
            self._sum(queue, user, amounts, 1)

    def charge(self, queue: QueueName, user: str, amounts: Amounts, sign: int = 1) -> None:
        """Count what a gang uses; with the sign -1, exactly undo it."""
        _add(self._of.setdefault((queue, user), {}), amounts, sign)
        self._sum(queue, user, amounts, sign)

    def refusal(self, queue: QueueName, user: str, amounts: Amounts) -> str | None:
        """Which limit this much more would break, at any level; None where it breaks none."""
        for level in self._path(queue):
            limits = self._most[level]
            if limits and (over := _over(limits, self._queues.get(level, {}), amounts)) is not None:
                return (
                    f"queue {level} may use at most {_say(over, limits[over])}, and uses "
                    f"{_say(over, self._queues.get(level, {}).get(over, 0))}"
                )
            limits = self.tree.queues[level].user_limit
            used = self._users.get((level, user), {})
            if limits and (over := _over(limits, used, amounts)) is not None:
                return (
                    f"one user may use at most {_say(over, limits[over])} in queue {level}, and {user} "
                    f"uses {_say(over, used.get(over, 0))}"
                )
        return None

    def _path(self, queue: QueueName) -> tuple[QueueName, ...]:
        found = self._paths.get(queue)
        if found is None:
            found = self._paths[queue] = path(self.tree, queue)
        return found

    def _sum(self, queue: QueueName, user: str, amounts: Amounts, sign: int) -> None:
        for level in self._path(queue):
            _add(self._queues.setdefault(level, {}), amounts, sign)
            if self.tree.queues[level].user_limit:
                _add(self._users.setdefault((level, user), {}), amounts, sign)


def _over(limits: Amounts, used: Mapping[str, int], more: Amounts) -> str | None:
    return next(
        (
            name
            for name, amount in more.items()
            if name in limits and used.get(name, 0) + amount > limits[name]
        ),
        None,
    )


def _add(to: dict[str, int], amounts: Amounts, sign: int) -> None:
    for name, amount in amounts.items():
        to[name] = to.get(name, 0) + sign * amount


def _say(name: str, amount: int) -> str:
    if name == CPU:
        return f"{amount / 1000:g} CPUs"
    if name == MEMORY:
        return f"{amount / _GIB:g} GiB of memory"
    if name == GPU or name.startswith(GPU_OF):
        return f"{amount / WHOLE_GPU:g} {name.removeprefix(GPU_OF) + ' ' if name != GPU else ''}GPUs"
    return f"{amount} {name}"

"""Why a queue may use no more, with the numbers."""

from __future__ import annotations

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Queue
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.reasons import cpus, size


def amount(name: str, of: int) -> str:
    """ "16 GPUs", "0.5 a100 GPUs", "4 CPUs", "8 GiB of memory", "2 fpga"."""
    if name == CPU:
        return cpus(of)
    if name == MEMORY:
        return f"{size(of)} of memory"
    if name == GPU or name.startswith(GPU_OF):
        model = name[len(GPU_OF) :] + " " if name != GPU else ""
        number = f"{of / WHOLE_GPU:g}"
        return f"{number} {model}GPU" if number == "1" else f"{number} {model}GPUs"
    return f"{of} {name}"


def over_limit(queue: Queue, name: str, *, ask: int, used: int, limit: int) -> str:
    """The queue, or one above the gang's, is at the most that it may use.
    What it may not borrow of that is its own, by this name or, of GPUs, by those of their models."""
    if queue.maximum.get(name) == limit:
        return (
            f"{_asks(name, ask)}; queue {queue.name} uses {_bare(name, used)} of at most "
            f"{amount(name, limit)}"
        )
    own, beyond = amount(name, limit - queue.borrow_limit[name]), amount(name, queue.borrow_limit[name])
    return (
        f"{_asks(name, ask)}; queue {queue.name} uses {_bare(name, used)} of its {own} and may borrow "
        f"{beyond} more"
    )


def kept_back(queue: QueueName, name: str, *, ask: int, left: int, keepers: list[QueueName]) -> str:
    """What is left is kept by queues that do not lend it; without any, all the rest is in use."""
    who = ", ".join(keepers[:3]) + (", …" if len(keepers) > 3 else "")
    rest = f"the rest is kept for {who}" if keepers else "others use the rest"
    return f"{_asks(name, ask)}; queue {queue} may use {amount(name, left)} more, {rest}"


def user_over(user: str, queue: QueueName, name: str, *, ask: int, used: int, limit: int) -> str:
    return (
        f"{_asks(name, ask)}; {user or 'its user'} uses {_bare(name, used)} of at most "
        f"{amount(name, limit)} for one user in queue {queue}"
    )


def no_queue(queue: QueueName, leaves: list[QueueName]) -> str:
    """leaves: of the queue, when there is one of that name."""
    if leaves:
        return f"queue {queue} has queues below it, and runs wait in those only: {', '.join(leaves)}"
    return f"there is no queue {queue} any more"


def _asks(name: str, ask: int) -> str:
    return f"asks for {amount(name, ask)}"


def _bare(name: str, of: int) -> str:
    """An amount whose unit the next one in the sentence says again."""
    return amount(name, of) if name == MEMORY else amount(name, of).split(" ")[0]

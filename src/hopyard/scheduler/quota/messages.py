"""Why a queue may use no more, with the numbers."""

from __future__ import annotations

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Queue
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.amount_text import format_bytes, format_cpus


def format_amount(resource: str, quantity: int) -> str:
    """ "16 GPUs", "0.5 a100 GPUs", "4 CPUs", "8 GiB of memory", "2 fpga"."""
    if resource == CPU:
        return format_cpus(quantity)
    if resource == MEMORY:
        return f"{format_bytes(quantity)} of memory"
    if resource == GPU or resource.startswith(GPU_OF):
        model = resource[len(GPU_OF) :] + " " if resource != GPU else ""
        number = f"{quantity / WHOLE_GPU:g}"
        return f"{number} {model}GPU" if number == "1" else f"{number} {model}GPUs"
    return f"{quantity} {resource}"


def limit_reached_message(queue: Queue, resource: str, *, requested: int, used: int, limit: int) -> str:
    """The queue, or one above the gang's, is at the most that it may use.
    What it may not borrow of that is its own, by this name or, of GPUs, by those of their models."""
    if queue.maximum.get(resource) == limit:
        return (
            f"{_request_clause(resource, requested)}; queue {queue.name} uses "
            f"{_format_without_unit(resource, used)} of at most "
            f"{format_amount(resource, limit)}"
        )
    own, beyond = (
        format_amount(resource, limit - queue.borrow_limit[resource]),
        format_amount(resource, queue.borrow_limit[resource]),
    )
    return (
        f"{_request_clause(resource, requested)}; queue {queue.name} uses "
        f"{_format_without_unit(resource, used)} of its {own} and may borrow "
        f"{beyond} more"
    )


def non_lendable_message(
    queue: QueueName, resource: str, *, requested: int, available: int, non_lending_queues: list[QueueName]
) -> str:
    """What is left is kept by queues that do not lend it; without any, all the rest is in use."""
    who = ", ".join(non_lending_queues[:3]) + (", …" if len(non_lending_queues) > 3 else "")
    rest = f"the rest is kept for {who}" if non_lending_queues else "others use the rest"
    return (
        f"{_request_clause(resource, requested)}; queue {queue} may use "
        f"{format_amount(resource, available)} more, {rest}"
    )


def user_limit_message(
    user: str, queue: QueueName, resource: str, *, requested: int, used: int, limit: int
) -> str:
    return (
        f"{_request_clause(resource, requested)}; {user or 'its user'} uses "
        f"{_format_without_unit(resource, used)} of at most "
        f"{format_amount(resource, limit)} for one user in queue {queue}"
    )


def unknown_queue_message(queue: QueueName, leaves: list[QueueName]) -> str:
    """leaves: of the queue, when there is one of that name."""
    if leaves:
        return f"queue {queue} has queues below it, and runs wait in those only: {', '.join(leaves)}"
    return f"there is no queue {queue} any more"


def _request_clause(resource: str, requested: int) -> str:
    return f"asks for {format_amount(resource, requested)}"


def _format_without_unit(resource: str, quantity: int) -> str:
    """An amount whose unit the next one in the sentence says again."""
    return (
        format_amount(resource, quantity)
        if resource == MEMORY
        else format_amount(resource, quantity).split(" ")[0]
    )

"""Messages for gangs that a queue refuses: the request, the usage and the limit in numbers."""

from __future__ import annotations

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Queue
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.amount_text import format_bytes, format_cpus


def format_amount(resource: str, quantity: int) -> str:
    """Returns "16 GPUs", "0.5 a100 GPUs", "4 CPUs", "8 GiB of memory" or "2 fpga"."""
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
    """The gang's queue, or an ancestor, is at its maximum, or at guarantee plus borrowing limit.

    The guarantee counts under this resource name, or for GPUs under the names of their models.
    """
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
    """The queues in `non_lending_queues` do not lend the rest. Without any, other queues use all of it."""
    names = ", ".join(non_lending_queues[:3]) + (", …" if len(non_lending_queues) > 3 else "")
    rest = f"the rest is not lent by {names}" if non_lending_queues else "other queues use the rest"
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
    """leaves: the child queues that take runs; empty if no queue has the name."""
    if leaves:
        return f"queue {queue} has child queues and takes no runs itself; use one of {', '.join(leaves)}"
    return f"queue {queue} no longer exists"


def _request_clause(resource: str, requested: int) -> str:
    return f"requests {format_amount(resource, requested)}"


def _format_without_unit(resource: str, quantity: int) -> str:
    """Returns the amount without its unit, which the next amount in the sentence repeats."""
    return (
        format_amount(resource, quantity)
        if resource == MEMORY
        else format_amount(resource, quantity).split(" ")[0]
    )

"""Sentences for gangs that a queue refuses: the request, the usage and the limit in numbers."""

from __future__ import annotations

from typing import assert_never

from hopyard.domain.quota_causes import (
    BorrowLimitReached,
    NonLendableCapacity,
    QueueMaximumReached,
    QuotaCause,
    UnknownQueue,
    UserLimitReached,
)
from hopyard.scheduler.explain.amount_text import format_amount, format_amount_without_unit

MAX_NAMED_QUEUES = 3


def quota_message(cause: QuotaCause) -> str:
    match cause:
        case UnknownQueue():
            return _unknown_queue_message(cause)
        case UserLimitReached():
            user = cause.user or "its user"
            return (
                f"{_request_clause(cause)}; {user} uses {_used_of_most(cause, cause.limit)} for one user "
                f"in queue {cause.queue}"
            )
        case QueueMaximumReached():
            return f"{_request_clause(cause)}; queue {cause.queue} uses {_used_of_most(cause, cause.maximum)}"
        case BorrowLimitReached():
            used = format_amount_without_unit(cause.resource, cause.used)
            own = format_amount(cause.resource, cause.guarantee)
            more = format_amount(cause.resource, cause.borrow_limit)
            return (
                f"{_request_clause(cause)}; queue {cause.queue} uses {used} of its {own} and may borrow "
                f"{more} more"
            )
        case NonLendableCapacity():
            return (
                f"{_request_clause(cause)}; queue {cause.queue} may use "
                f"{format_amount(cause.resource, cause.available)} more, {_lenders_clause(cause)}"
            )
        case _:
            assert_never(cause)


def _unknown_queue_message(cause: UnknownQueue) -> str:
    if cause.leaves:
        return (
            f"queue {cause.queue} has child queues and takes no runs itself; use one of "
            f"{', '.join(cause.leaves)}"
        )
    return f"queue {cause.queue} no longer exists"


def _request_clause(
    cause: UserLimitReached | QueueMaximumReached | BorrowLimitReached | NonLendableCapacity,
) -> str:
    return f"requests {format_amount(cause.resource, cause.requested)}"


def _used_of_most(cause: UserLimitReached | QueueMaximumReached, limit: int) -> str:
    used = format_amount_without_unit(cause.resource, cause.used)
    return f"{used} of at most {format_amount(cause.resource, limit)}"


def _lenders_clause(cause: NonLendableCapacity) -> str:
    queues = cause.non_lending_queues
    if not queues:
        return "other queues use the rest"
    more = ", …" if len(queues) > MAX_NAMED_QUEUES else ""
    return f"the rest is not lent by {', '.join(queues[:MAX_NAMED_QUEUES])}{more}"

"""Causes for which a queue refuses a gang: the request, the usage and the limit. Amounts are in the units of
`domain.queue`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import QueueName


@dataclass(frozen=True, slots=True)
class UnknownQueue:
    """The queue takes no runs. leaves: the queues below it that do; empty if no queue has the name."""

    reason: ClassVar[HoldReason] = HoldReason.NO_QUEUE
    queue: QueueName
    leaves: tuple[QueueName, ...]


@dataclass(frozen=True, slots=True)
class UserLimitReached:
    """The user would use more than one user may use in the queue."""

    reason: ClassVar[HoldReason] = HoldReason.USER_LIMIT
    user: str
    queue: QueueName
    resource: str
    requested: int
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class QueueMaximumReached:
    """The gang's queue, or an ancestor, would use more than its maximum."""

    reason: ClassVar[HoldReason] = HoldReason.QUOTA
    queue: QueueName
    resource: str
    requested: int
    used: int
    maximum: int


@dataclass(frozen=True, slots=True)
class BorrowLimitReached:
    """The gang's queue, or an ancestor, would use more than its guarantee and its borrowing limit.

    The guarantee counts under this resource name, or for GPUs under the names of their models.
    """

    reason: ClassVar[HoldReason] = HoldReason.QUOTA
    queue: QueueName
    resource: str
    requested: int
    used: int
    guarantee: int
    borrow_limit: int


@dataclass(frozen=True, slots=True)
class NonLendableCapacity:
    """Only `available` is left for the queue. non_lending_queues: the queues that do not lend the rest; empty
    if other queues use all of it."""

    reason: ClassVar[HoldReason] = HoldReason.QUOTA
    queue: QueueName
    resource: str
    requested: int
    available: int
    non_lending_queues: tuple[QueueName, ...]


QuotaCause = UnknownQueue | UserLimitReached | QueueMaximumReached | BorrowLimitReached | NonLendableCapacity

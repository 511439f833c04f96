"""The rules by which a queue refuses a gang (docs/concepts/scheduling.md explains them to users)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hopyard.domain.gang import Gang, Role
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU, GPU_OF, Amounts, Queue
from hopyard.domain.quota_causes import (
    BorrowLimitReached,
    NonLendableCapacity,
    QueueMaximumReached,
    QuotaCause,
    UnknownQueue,
    UserLimitReached,
)
from hopyard.scheduler.quota.queue_limits import QueueLimits
from hopyard.scheduler.quota.requests import GpuModels, gpu_milli_upper_bound
from hopyard.scheduler.quota.usage_ledger import UsageLedger


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """Why a gang may not start now, however much is free. cause: names the queue whose limit it is, the
    gang's own or an ancestor. closed_models: the GPU models of which no more may be used, if that is the
    cause."""

    cause: QuotaCause
    closed_models: frozenset[str] = frozenset()

    @property
    def reason(self) -> HoldReason:
        return self.cause.reason

    @property
    def queue(self) -> QueueName:
        return self.cause.queue

    @property
    def non_lending_queues(self) -> tuple[QueueName, ...]:
        """Returns the queues that do not lend the remaining capacity; empty if a limit refuses the gang."""
        return self.cause.non_lending_queues if isinstance(self.cause, NonLendableCapacity) else ()

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """Returns the queues as a Hold names them."""
        return tuple(f"queue:{queue}" for queue in self.non_lending_queues[:3] or (self.queue,))


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Checks gangs against the current usage: for each requested resource, at each level from the queue up,
    use never exceeds the maximum, nor the guarantee plus what may be borrowed. The part of a guarantee that a
    queue does not lend is used by no other queue.

    cluster_capacity: of the schedulable nodes. Valid until usage or nodes change.
    """

    limits: QueueLimits
    ledger: UsageLedger
    gpu_models: GpuModels
    cluster_capacity: Amounts

    def refusal(self, gang: Gang, requested: Amounts) -> QuotaRefusal | None:
        """Returns why the queue or the user may use no more of what the gang requests, or None."""
        limits, leaf = self.limits, gang.queue
        if leaf not in limits.leaves:
            leaves = sorted(name for name in limits.leaves if leaf in limits.paths[name])
            return QuotaRefusal(UnknownQueue(leaf, tuple(leaves)))
        for name, amount in requested.items():
            if not name.startswith(GPU_OF) and (refusal := self._resource_refusal(gang, name, amount)):
                return refusal
        return self._model_refusal(_smallest_size(gang)) if limits.limited_gpu_models[leaf] else None

    def is_refused_for(self, gang: Gang, requested: Amounts, resources: Collection[str]) -> bool:
        """Returns whether `refusal` is for one of these resources; GPU stands for the GPUs of all models."""
        for name, amount in requested.items():
            if (GPU if name.startswith(GPU_OF) else name) in resources and self._resource_refusal(
                gang, name, amount
            ):
                return True
        return (
            GPU in resources
            and bool(self.limits.limited_gpu_models.get(gang.queue))
            and self._model_refusal(_smallest_size(gang)) is not None
        )

    def closed_models(self, gang: Gang) -> frozenset[str]:
        """Returns the GPU models, in lower case, of which the queue or the user may not use as many as the
        gang could be placed on."""
        return frozenset(
            model
            for model in self.limits.limited_gpu_models.get(gang.queue, ())
            if (max_use := self._max_use(gang, model))
            and self._resource_refusal(gang, GPU_OF + model, max_use)
        )

    def _resource_refusal(self, gang: Gang, resource: str, requested: int) -> QuotaRefusal | None:
        """Returns why no more of one resource may be used, or None."""
        limits, ledger, leaf = self.limits, self.ledger, gang.queue
        for queue, limits_of_level in limits.user_limited_levels[leaf]:
            limit = limits_of_level.get(resource)
            if (
                limit is not None
                and (used := ledger.used_by_user(queue, gang.user).get(resource, 0)) + requested > limit
            ):
                return QuotaRefusal(UserLimitReached(gang.user, queue, resource, requested, used, limit))
        for queue, limits_of_level in limits.limited_levels[leaf]:
            limit = limits_of_level.get(resource)
            if limit is not None and (used := ledger.used(queue).get(resource, 0)) + requested > limit:
                return QuotaRefusal(_limit_cause(limits.tree.queues[queue], resource, requested, used, limit))
        if (
            resource in limits.non_lendable_names
            and self.cluster_capacity
            and (available := self._available(leaf, resource)) < requested
        ):
            non_lending_queues = tuple(self._non_lending_queues(leaf, resource))
            return QuotaRefusal(NonLendableCapacity(leaf, resource, requested, available, non_lending_queues))
        return None

    def _available(self, leaf: QueueName, resource: str) -> int:
        """Returns how much more the leaf may use without the non-lendable capacity of other queues. At each
        level that is its own unused non-lendable capacity, plus what is free above it within the limit there
        (after Kueue's hierarchical cohorts)."""
        ledger = self.ledger
        available = self.cluster_capacity.get(resource, 0) - ledger.total_committed(resource)
        for level in reversed(self.limits.paths[leaf]):
            limit = self.limits.maximums[level].get(resource)
            if limit is not None:
                available = min(available, limit - ledger.committed(level, resource))
            available = max(available, 0) + ledger.unused_non_lendable(level, resource)
        return available

    def _non_lending_queues(self, leaf: QueueName, resource: str) -> list[QueueName]:
        path = self.limits.paths[leaf]
        return sorted(
            queue
            for queue in self.limits.non_lendable
            if queue not in path and self.ledger.unused_non_lendable(queue, resource) > 0
        )

    def _model_refusal(self, gang: Gang) -> QuotaRefusal | None:
        """Returns why no GPU model is left that some role could use, or None."""
        closed = self.closed_models(gang)
        for role in gang.roles if closed else ():
            models = self._allowed_models(role)
            if gpu_milli_upper_bound(role.resources, self.gpu_models) and models and models <= closed:
                model = min(models)
                max_use = self._max_use(gang, model, only_this_model=len(models) == 1)
                refusal = self._resource_refusal(gang, GPU_OF + model, max_use)
                if refusal is not None:
                    return QuotaRefusal(refusal.cause, closed)
        return None

    def _allowed_models(self, role: Role) -> frozenset[str]:
        """Returns the GPU models that the role may use."""
        return frozenset(model.lower() for model in role.resources.gpu_models) or self.gpu_models.names

    def _max_use(self, gang: Gang, model: str, *, only_this_model: bool = False) -> int:
        """Returns thousandths of GPUs of the model if all roles that may use it do. only_this_model: counts
        only roles that may use no other model."""
        roles = [
            role
            for role in gang.roles
            if model in (models := self._allowed_models(role)) and not (only_this_model and len(models) > 1)
        ]
        return sum(gpu_milli_upper_bound(role.resources, self.gpu_models) * role.replicas for role in roles)


def _limit_cause(
    queue: Queue, resource: str, requested: int, used: int, limit: int
) -> QueueMaximumReached | BorrowLimitReached:
    """The limit is the maximum of the queue, or its guarantee plus its borrowing limit."""
    if queue.maximum.get(resource) == limit:
        return QueueMaximumReached(queue.name, resource, requested, used, limit)
    borrow_limit = queue.borrow_limit[resource]
    return BorrowLimitReached(queue.name, resource, requested, used, limit - borrow_limit, borrow_limit)


def _smallest_size(gang: Gang) -> Gang:
    return gang.with_replica_counts([role.required_replicas for role in gang.roles])

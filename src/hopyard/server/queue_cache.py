"""Caches the tree of queues, which is read often and changed rarely, and checks submissions against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hopyard.config.resource_amounts import amount_value, resource_key
from hopyard.config.suggest import closest_name
from hopyard.domain.cluster import Node, Snapshot
from hopyard.domain.effective_limits import child_queues, effective_admins, effective_submitters, queue_path
from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.run import RunSpec
from hopyard.errors import DoesNotFit, Forbidden, SpecError
from hopyard.interfaces.queue_store import QueueStore
from hopyard.scheduler.explain.quota_messages import quota_message
from hopyard.scheduler.quota.queue_report import queue_report, user_report
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.server.cache_validation import is_valid

_CACHE_TTL = timedelta(seconds=1)


class QueueCache:
    def __init__(self, store: QueueStore, *, now: Callable[[], datetime], owner: str) -> None:
        self._store, self._now, self.owner = store, now, owner
        self._tree: QueueTree | None = None
        self._valid_until: datetime | None = None
        self._empty_usage: tuple[QueueTree, Sequence[Node], QuotaUsage] | None = None

    async def tree(self, *, bypass_cache: bool = False) -> QueueTree:
        """Returns the tree. It may be up to a second old, unless `bypass_cache`. Changes by this server are
        visible at once."""
        now = self._now()
        is_current = self._valid_until is not None and is_valid(self._valid_until, now, _CACHE_TTL)
        if bypass_cache or self._tree is None or not is_current:
            self._tree, self._valid_until = await self._store.tree(), now + _CACHE_TTL
        return self._tree

    async def count_waiting(self) -> Mapping[QueueName, int]:
        """Returns how many runs wait in each queue that has any."""
        return await self._store.count_waiting()

    async def replace(self, tree: QueueTree) -> None:
        """Replaces the tree. Raises Conflict when runs wait in a queue that would be removed."""
        try:
            await self._store.replace(tree)
        finally:
            self._tree = None

    async def check_admissible(self, gang: Gang, nodes: Sequence[Node]) -> None:
        """Raises DoesNotFit when the gang can never start in its queue.

        The gang exceeds the limits of its queue or user, or the capacity that is left when other queues use
        their guarantees. Nodes that are out of service count, too.
        """
        tree = await self.tree()
        if self._empty_usage is None or self._empty_usage[0] is not tree or self._empty_usage[1] is not nodes:
            schedulable_nodes = [node.as_schedulable() for node in nodes]
            self._empty_usage = tree, nodes, QuotaUsage.of(tree, schedulable_nodes, (), {}, self._now())
        refusal = self._empty_usage[2].refusal(gang)
        if refusal is not None:
            hint = (
                f"show its limits with `hop queue info {(refusal.non_lending_queues or (refusal.queue,))[0]}`"
            )
            raise DoesNotFit(
                f"a run of this size can never start in queue {gang.queue}: {quota_message(refusal.cause)}",
                hints=(hint,),
            )


def without_removed_queue(tree: QueueTree, spec: RunSpec) -> tuple[RunSpec, QueueName | None]:
    """Returns the spec that a fork inherits, and its queue if that no longer exists. The fork then goes to
    the default queue, without the priority, which belonged to the removed queue."""
    if spec.queue is None or spec.queue in tree.queues:
        return spec, None
    return replace(spec, queue=None, priority=None), spec.queue


def assign_queue(tree: QueueTree, spec: RunSpec, *, user: str, owner: str, is_trial: bool = False) -> RunSpec:
    """Returns the spec with its queue and priority. Raises SpecError; Forbidden when the user may not submit
    to the queue.

    is_trial: the spec is a trial of a study that was accepted with this priority.
    """
    queue = _get_leaf(tree, spec.queue or tree.default)
    submitters = _allowed_submitters(tree, queue.name, owner)
    if submitters and user not in submitters:
        allowed_queues = [
            name for name in _leaf_names(tree) if user in (_allowed_submitters(tree, name, owner) or (user,))
        ]
        hint = (
            f"queues that you may submit to: {', '.join(allowed_queues)}"
            if allowed_queues
            else "ask one of them"
        )
        raise Forbidden(
            f"`{user}` may not submit to queue {queue.name}; allowed users: {', '.join(submitters[:20])}",
            hints=(hint,),
        )
    trusted = is_trial or user == owner or user in effective_admins(tree, queue.name)
    if not spec.preemptible and not queue.no_preempt and not trusted:
        hint = "remove `--no-preempt`: only administrators of the queue can use it"
        raise Forbidden(
            f"`{user}` may not submit runs that are never preempted to queue {queue.name}", hints=(hint,)
        )
    priority = queue.default_priority if spec.priority is None else spec.priority
    if not trusted:
        check_priority(queue, priority, user=user)
    return replace(spec, queue=queue.name, priority=priority)


def check_may_change(before: QueueTree, after: QueueTree, *, user: str, owner: str) -> None:
    """Raises Forbidden unless the user is the owner, or administers an ancestor of each queue that
    differs."""
    if user == owner:
        return
    if (before.default, before.half_life_s) != (after.default, after.half_life_s):
        raise Forbidden(
            "only the server's owner may change `default` and `half_life`", hints=(f"the owner is {owner}",)
        )
    for name in sorted({*before.queues, *after.queues}):
        if before.queues.get(name) == after.queues.get(name):
            continue
        for tree in (before, after):
            ancestor = _existing_ancestor(tree, name, before)
            admins = () if ancestor is None else effective_admins(before, ancestor)
            if name in tree.queues and user not in admins:
                allowed_users = ", ".join(dict.fromkeys([*admins, owner]))
                raise Forbidden(
                    f"`{user}` may not change queue {name}; allowed users: {allowed_users}",
                    hints=("administrators change what is below their queue",),
                )


def limits_below_usage(snapshot: Snapshot) -> list[str]:
    """Returns a sentence for each limit that is below the current usage. No run is stopped for it, but no run
    starts until the usage falls below the limit."""
    warnings = []
    for use in queue_report(snapshot):
        name = use.queue.name
        warnings += [
            (
                f"{name}: at most {_format_amount(resource, limit)}, and its runs use "
                f"{_format_amount(resource, use.used.get(resource, 0))} now: these continue, and no "
                "other run starts until less is used"
            )
            for resource, limit in sorted(use.maximum.items())
            if use.used.get(resource, 0) > limit
        ]
        warnings += [
            (
                f"{name}: at most {_format_amount(resource, limit)} for one user, and {user.user} uses "
                f"{_format_amount(resource, user.used.get(resource, 0))} now"
            )
            for user in (user_report(snapshot, name) if use.queue.user_limit else ())
            for resource, limit in sorted(use.queue.user_limit.items())
            if user.used.get(resource, 0) > limit
        ]
    return warnings


def _format_amount(resource: str, amount: int) -> str:
    return f"{amount_value(resource, amount)} {resource_key(resource)}"


def _existing_ancestor(tree: QueueTree, name: QueueName, before: QueueTree) -> QueueName | None:
    return next((ancestor for ancestor in queue_path(tree, name)[1:] if ancestor in before.queues), None)


def _get_leaf(tree: QueueTree, name: QueueName) -> Queue:
    queue = tree.queues.get(name)
    if queue is not None and all(other.parent != name for other in tree.queues.values()):
        return queue
    leaves = _leaf_names(tree)
    if queue is None:
        suggestion = closest_name(name, leaves)
        hints = (
            *((f"did you mean `{suggestion}`?",) if suggestion else ()),
            f"choose a queue with `-q QUEUE`: {', '.join(leaves[:20])}",
        )
        raise SpecError(f"queue: there is no queue `{name}`", hints=hints)
    if name not in leaves:
        leaves_below = [leaf for leaf in leaves if name in queue_path(tree, leaf)]
        raise SpecError(
            f"queue: `{name}` has queues below it; runs wait only in queues without any",
            hints=(f"choose one of {', '.join(leaves_below[:20])}",),
        )
    return queue


def _leaf_names(tree: QueueTree) -> list[QueueName]:
    children = child_queues(tree)
    return [name for name in sorted(tree.queues) if name not in children]


def _allowed_submitters(tree: QueueTree, queue: QueueName, owner: str) -> tuple[str, ...]:
    """Returns all users who may submit to the queue; () means every user.

    These are the submitters of the queue or its nearest ancestor that names any, the administrators of the
    queue and its ancestors, and the owner.
    """
    submitters = effective_submitters(tree, queue)
    return tuple(dict.fromkeys([*submitters, *effective_admins(tree, queue), owner])) if submitters else ()


def check_priority(queue: Queue, requested: int, *, user: str) -> None:
    """Raises SpecError when a user who does not administer the queue may not use this priority in it."""
    low, high = queue.priority_range_of(user)
    if not low <= requested <= high:
        hints = (
            f"omit it to use the default of the queue, {queue.default_priority}",
            (
                f"administrators of the queue may use others; `user_priorities: {{{user}: {requested}}}` in "
                f"the queue file grants this one to {user}, `priorities` to all"
            ),
        )
        raise SpecError(
            f"priority: {requested} is not in the range {low} to {high} of queue {queue.name} for {user}",
            hints=hints,
        )

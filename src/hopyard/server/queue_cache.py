"""The tree of queues at the server: read often, changed seldom; and what it says to a run that is
submitted."""

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
from hopyard.scheduler.quota.queue_report import queue_report, user_report
from hopyard.scheduler.quota.quota_usage import QuotaUsage

_CACHE_TTL = timedelta(seconds=1)


class QueueCache:
    def __init__(self, store: QueueStore, *, now: Callable[[], datetime], owner: str) -> None:
        self._store, self._now, self.owner = store, now, owner
        self._tree: QueueTree | None = None
        self._valid_until: datetime | None = None
        self._empty_usage: tuple[QueueTree, Sequence[Node], QuotaUsage] | None = None

    async def tree(self, *, bypass_cache: bool = False) -> QueueTree:
        """As of at most a second ago, or as of now; what this server changed itself is seen at once."""
        now = self._now()
        if bypass_cache or self._tree is None or self._valid_until is None or now >= self._valid_until:
            self._tree, self._valid_until = await self._store.tree(), now + _CACHE_TTL
        return self._tree

    async def count_waiting(self) -> Mapping[QueueName, int]:
        """How many runs wait in each queue that has any."""
        return await self._store.count_waiting()

    async def replace(self, tree: QueueTree) -> None:
        """Raises Conflict when runs wait in a queue that would be gone."""
        try:
            await self._store.replace(tree)
        finally:
            self._tree = None

    async def check_admissible(self, gang: Gang, nodes: Sequence[Node]) -> None:
        """Raises DoesNotFit when the gang asks for more than its queue or its user may ever use, or than
        others leave that keep their guarantees, of nodes that are out of service, too."""
        tree = await self.tree()
        if self._empty_usage is None or self._empty_usage[0] is not tree or self._empty_usage[1] is not nodes:
            opened = [node.as_schedulable() for node in nodes]
            self._empty_usage = tree, nodes, QuotaUsage.of(tree, opened, (), {}, self._now())
        refused = self._empty_usage[2].refusal(gang)
        if refused is not None:
            hint = (
                f"show its limits with `hop queue info {(refused.non_lending_queues or (refused.queue,))[0]}`"
            )
            raise DoesNotFit(
                f"a run as large may never start in queue {gang.queue}: {refused.detail}", hints=(hint,)
            )


def without_removed_queue(tree: QueueTree, spec: RunSpec) -> tuple[RunSpec, QueueName | None]:
    """The spec that a fork inherits, and the queue of it that there is no more: a run that asks for none goes
    to the default one. Its priority goes as well, since it was one of that queue."""
    if spec.queue is None or spec.queue in tree.queues:
        return spec, None
    return replace(spec, queue=None, priority=None), spec.queue


def assign_queue(tree: QueueTree, spec: RunSpec, *, user: str, owner: str, is_trial: bool = False) -> RunSpec:
    """The spec with its queue and its priority. Raises SpecError, and Forbidden when the user may not submit
    there.

    is_trial: of a study that was accepted with this priority."""
    queue = _get_leaf(tree, spec.queue or tree.default)
    may = _allowed_submitters(tree, queue.name, owner)
    if may and user not in may:
        others = [
            name for name in _leaf_names(tree) if user in (_allowed_submitters(tree, name, owner) or (user,))
        ]
        hint = f"queues that you may submit to: {', '.join(others)}" if others else "ask one of them"
        raise Forbidden(
            f"`{user}` may not submit to queue {queue.name}; allowed users: {', '.join(may[:20])}",
            hints=(hint,),
        )
    trusted = is_trial or user == owner or user in effective_admins(tree, queue.name)
    if not spec.preemptible and not queue.no_preempt and not trusted:
        hint = "leave out `--no-preempt`; remove `--no-preempt`; only administrators of the queue can use it"
        raise Forbidden(
            f"`{user}` may not submit runs that are never preempted to queue {queue.name}", hints=(hint,)
        )
    priority = queue.default_priority if spec.priority is None else spec.priority
    if not trusted:
        check_priority(queue, priority, user=user)
    return replace(spec, queue=queue.name, priority=priority)


def check_may_change(before: QueueTree, after: QueueTree, *, user: str, owner: str) -> None:
    """Raises Forbidden unless the user is the owner, or administers what all queues that differ are below."""
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
            above = _existing_ancestor(tree, name, before)
            may = () if above is None else effective_admins(before, above)
            if name in tree.queues and user not in may:
                who = ", ".join(dict.fromkeys([*may, owner]))
                raise Forbidden(
                    f"`{user}` may not change queue {name}; allowed users: {who}",
                    hints=("administrators change what is below their queue",),
                )


def limits_below_usage(snapshot: Snapshot) -> list[str]:
    """A sentence for each limit that is below what is used now: nobody is stopped for it, and nothing starts
    there meanwhile."""
    found = []
    for use in queue_report(snapshot):
        name = use.queue.name
        found += [
            (
                f"{name}: at most {_format_amount(resource, most)}, and its runs use "
                f"{_format_amount(resource, use.used.get(resource, 0))} now: these continue, and no other "
                "starts "
                "until less is used"
            )
            for resource, most in sorted(use.maximum.items())
            if use.used.get(resource, 0) > most
        ]
        found += [
            (
                f"{name}: at most {_format_amount(resource, most)} for one user, and {user.user} uses "
                f"{_format_amount(resource, user.used.get(resource, 0))} now"
            )
            for user in (user_report(snapshot, name) if use.queue.user_limit else ())
            for resource, most in sorted(use.queue.user_limit.items())
            if user.used.get(resource, 0) > most
        ]
    return found


def _format_amount(resource: str, amount: int) -> str:
    return f"{amount_value(resource, amount)} {resource_key(resource)}"


def _existing_ancestor(tree: QueueTree, name: QueueName, before: QueueTree) -> QueueName | None:
    return next((above for above in queue_path(tree, name)[1:] if above in before.queues), None)


def _get_leaf(tree: QueueTree, name: QueueName) -> Queue:
    queue = tree.queues.get(name)
    if queue is not None and all(other.parent != name for other in tree.queues.values()):
        return queue
    leaves = _leaf_names(tree)
    if queue is None:
        near = closest_name(name, leaves)
        hints = (
            *((f"did you mean `{near}`?",) if near else ()),
            f"`-q QUEUE` names another one: {', '.join(leaves[:20])}",
        )
        raise SpecError(f"queue: there is no queue `{name}`", hints=hints)
    if name not in leaves:
        inside = [leaf for leaf in leaves if name in queue_path(tree, leaf)]
        raise SpecError(
            f"queue: `{name}` has queues below it, and runs wait in those only",
            hints=(f"name one of {', '.join(inside[:20])}",),
        )
    return queue


def _leaf_names(tree: QueueTree) -> list[QueueName]:
    below = child_queues(tree)
    return [name for name in sorted(tree.queues) if name not in below]


def _allowed_submitters(tree: QueueTree, queue: QueueName, owner: str) -> tuple[str, ...]:
    """Everybody who may: those whom it or the next above it names, administrators of it and of those above,
    the owner. () is everybody."""
    named = effective_submitters(tree, queue)
    return tuple(dict.fromkeys([*named, *effective_admins(tree, queue), owner])) if named else ()


def check_priority(queue: Queue, requested: int, *, user: str) -> None:
    """Raises SpecError when a user who does not administer the queue may not ask for this priority there."""
    low, high = queue.priority_range_of(user)
    if not low <= requested <= high:
        hints = (
            f"without one, a run gets {queue.default_priority} there",
            (
                f"administrators of the queue may use others; `user_priorities: {{{user}: {requested}}}` in "
                f"the queue file grants this one to {user}, `priorities` to all"
            ),
        )
        raise SpecError(
            f"priority: {requested} is not from {low} to {high}, which queue {queue.name} allows {user}",
            hints=hints,
        )

"""The tree of queues: looking at it, and putting another in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hopyard.config.queuechecks import beyond_cluster, idle_limits
from hopyard.config.queues import tree_of
from hopyard.config.queuetext import changes, tree_mapping
from hopyard.config.reader import section
from hopyard.config.suggest import closest
from hopyard.domain.access import Scope
from hopyard.domain.amounts import totals
from hopyard.domain.queue import QueueTree
from hopyard.domain.quota import children, path
from hopyard.domain.run import RunPhase
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.scheduler.fairness.overview import overview, users_of
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.known import named_in, unknown_users
from hopyard.server.parts import Parts
from hopyard.server.queue_wire import (
    ApplyOut,
    ApplyQuery,
    QueueOut,
    QueuesOut,
    TreeIn,
    change_out,
    queue_out,
    user_out,
)
from hopyard.server.queues import below_use, check_may_change
from hopyard.server.reservation_wire import coming

_LOOK_AT = 1000  # newest waiting runs among which those of a queue are looked for, to name a few
_NAMED = 5


def queue_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def list_queues(_ask: Ask[Nothing, Nothing]) -> QueuesOut:
        """List the queues with what they use, borrow and lend, and the tree as a file would declare it."""
        snapshot = await parts.cluster.snapshot(now=parts.now())
        tree = snapshot.queues
        return QueuesOut(
            default=tree.default,
            half_life_s=tree.half_life_s,
            owner=parts.queues.owner,
            cluster=totals(node for node in snapshot.nodes.values() if node.open),
            queues=[queue_out(tree, use) for use in overview(snapshot)],
            tree=tree_mapping(tree),
        )

    async def get(ask: Ask[Nothing, Nothing]) -> QueueOut:
        """Get a queue with its users, in the order in which they come next, and what is reserved for it."""
        snapshot = await parts.cluster.snapshot(now=parts.now())
        found = {use.queue.name: use for use in overview(snapshot)}
        use = next((one for name, one in found.items() if name == ask.path["queue"]), None)
        if use is None:
            near = closest(ask.path["queue"], found)
            raise NotFound(
                f"there is no queue `{ask.path['queue']}`",
                hints=(f"did you mean `{near}`?" if near else "`hop queue ls` lists them",),
            )
        users = [user_out(user) for user in users_of(snapshot, use.queue.name)]
        above = {use.queue.name, *path(snapshot.queues, use.queue.name)}
        return queue_out(snapshot.queues, use, users, coming(snapshot, lambda one: one.queue in above))

    async def apply(ask: Ask[ApplyQuery, TreeIn]) -> ApplyOut:
        """Put a tree of queues in the place of the one that stands, whole or not at all.

        400 says what in it cannot be, with its path. 403 unless the caller is the server's owner, or an
        administrator of all that differs. 409 names runs that wait in queues that would be gone.
        """
        before = await parts.queues.tree(fresh=True)
        after = tree_of(section(ask.body.file, "", ask.body.tree))
        differ = changes(before, after)
        check_may_change(before, after, user=ask.caller.user, owner=parts.queues.owner)
        await _check_nobody_is_left(parts, after)
        apply_it = bool(differ) and not ask.query.dry_run
        if apply_it:
            await parts.queues.replace(after)
            parts.controller.wake()
        strangers = await unknown_users(parts.access, named_in(after)) if differ else []
        left = [
            one
            for one in await parts.reservations.list()
            if one.queue in before.queues and one.queue not in after.queues
        ]
        orphans = [
            f"reservation {one.name} is for queue {one.queue}, which {'is' if apply_it else 'would be'} gone"
            for one in left
        ]
        in_use = (
            below_use(replace(await parts.cluster.snapshot(now=parts.now()), queues=after)) if differ else []
        )
        warnings = [
            *idle_limits(after),
            *beyond_cluster(after, await parts.nodes.get()),
            *in_use,
            *strangers,
            *orphans,
        ]
        return ApplyOut([change_out(change) for change in differ], warnings, apply_it)

    return [
        Endpoint("GET", "/queues", list_queues, returns=QueuesOut),
        Endpoint(
            "PUT",
            "/queues",
            apply,
            ApplyQuery,
            TreeIn,
            returns=ApplyOut,
            errors=(400, 403, 409),
            scope=Scope.ADMIN,
        ),
        Endpoint("GET", "/queues/{queue}", get, returns=QueueOut),
    ]


async def _check_nobody_is_left(parts: Parts, tree: QueueTree) -> None:
    """Raises Conflict naming runs that wait in a queue that would be no leaf of the tree."""
    below = children(tree)
    lost = {
        queue: count
        for queue, count in sorted((await parts.queues.waiting()).items())
        if queue not in tree.queues or queue in below
    }
    if not lost:
        return
    waiting = await parts.runs.list(
        RunFilter(phases=frozenset({RunPhase.QUEUED}), limit=_LOOK_AT, brief=True)
    )
    named = [str(run.name) for run in waiting if run.spec.queue in lost]
    queues = ", ".join(f"{queue} ({count})" for queue, count in lost.items())
    runs = ", ".join(named[:_NAMED]) + (", …" if sum(lost.values()) > _NAMED else "")
    leaves = [name for name in sorted(tree.queues) if name not in below]
    move = (
        f"move them first: `hop update --from-queue {next(iter(lost))} --queue "
        f"{leaves[0] if leaves else 'QUEUE'}`"
    )
    hints = (move, "or keep these queues until their runs have started, or end the runs: `hop stop RUN`")
    raise Conflict(
        f"runs wait in queues that would be gone or have others below them: {queues}: {runs}", hints=hints
    )

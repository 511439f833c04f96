"""The tree of queues: listing it and replacing it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hopyard.config.queues.export import diff_trees, tree_mapping
from hopyard.config.queues.limit_checks import limits_beyond_cluster, unreachable_limits
from hopyard.config.queues.queue_file import queue_tree_from
from hopyard.config.suggest import closest_name
from hopyard.config.yaml_section import as_section
from hopyard.domain.access import Scope
from hopyard.domain.amounts import total_amounts
from hopyard.domain.effective_limits import child_queues, queue_path
from hopyard.domain.queue import QueueTree
from hopyard.domain.run import RunPhase
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.scheduler.explain.queue_comparison import explain_share
from hopyard.scheduler.quota.queue_report import queue_report, user_report
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.queue_cache import check_may_change, limits_below_usage
from hopyard.server.schemas.queues import (
    ApplyOut,
    ApplyQuery,
    QueueOut,
    QueuesOut,
    TreeIn,
    to_change_out,
    to_queue_out,
    to_user_out,
)
from hopyard.server.schemas.reservations import upcoming_reservations
from hopyard.server.services import Services
from hopyard.server.unknown_users import unknown_users, users_named_in

_MAX_LISTED_RUNS = 1000  # newest waiting runs that are searched for runs of a queue, to name some of them
_MAX_NAMED_RUNS = 5


def queue_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_queues(_request: ApiRequest[Empty, Empty]) -> QueuesOut:
        """List the queues with their usage, borrowed and lent resources, and the tree in the form of a queue
        file."""
        snapshot = await services.cluster.snapshot(now=services.now())
        tree = snapshot.queues
        return QueuesOut(
            default=tree.default,
            half_life_s=tree.half_life_s,
            owner=services.queue_cache.owner,
            cluster=total_amounts(node for node in snapshot.nodes.values() if node.schedulable),
            queues=[to_queue_out(tree, use) for use in queue_report(snapshot)],
            tree=tree_mapping(tree),
        )

    async def get(request: ApiRequest[Empty, Empty]) -> QueueOut:
        """Get a queue with its users in scheduling order, its reservations, and why another queue gets
        more."""
        snapshot = await services.cluster.snapshot(now=services.now())
        usage_by_name = {use.queue.name: use for use in queue_report(snapshot)}
        use = next(
            (queue_use for name, queue_use in usage_by_name.items() if name == request.path["queue"]), None
        )
        if use is None:
            suggestion = closest_name(request.path["queue"], usage_by_name)
            raise NotFound(
                f"there is no queue `{request.path['queue']}`",
                hints=(
                    f"did you mean `{suggestion}`?" if suggestion else "list the queues with `hop queue ls`",
                ),
            )
        users = [to_user_out(user) for user in user_report(snapshot, use.queue.name)]
        ancestors = {use.queue.name, *queue_path(snapshot.queues, use.queue.name)}
        return to_queue_out(
            snapshot.queues,
            use,
            users,
            upcoming_reservations(snapshot, lambda reservation: reservation.queue in ancestors),
            await asyncio.to_thread(explain_share, snapshot, use.queue.name),
        )

    async def apply(request: ApiRequest[ApplyQuery, TreeIn]) -> ApplyOut:
        """Replace the tree of queues, completely or not at all.

        400 names the invalid setting by its path. 403 unless the caller owns the server or administers all
        changed queues. 409 lists runs that wait in removed queues.
        """
        before = await services.queue_cache.tree(bypass_cache=True)
        after = queue_tree_from(as_section(request.body.file, "", request.body.tree))
        changes = diff_trees(before, after)
        check_may_change(before, after, user=request.caller.user, owner=services.queue_cache.owner)
        await _check_no_stranded_runs(services, after)
        is_applied = bool(changes) and not request.query.dry_run
        if is_applied:
            await services.queue_cache.replace(after)
            services.controller.request_cycle()
        user_warnings = await unknown_users(services.access, users_named_in(after)) if changes else []
        orphaned = [
            reservation
            for reservation in await services.reservations.list()
            if reservation.queue in before.queues and reservation.queue not in after.queues
        ]
        orphan_warnings = [
            f"reservation {reservation.name} is for queue {reservation.queue}, "
            f"which {'was' if is_applied else 'would be'} removed"
            for reservation in orphaned
        ]
        limit_warnings = (
            limits_below_usage(replace(await services.cluster.snapshot(now=services.now()), queues=after))
            if changes
            else []
        )
        warnings = [
            *unreachable_limits(after),
            *limits_beyond_cluster(after, await services.node_cache.get()),
            *limit_warnings,
            *user_warnings,
            *orphan_warnings,
        ]
        return ApplyOut([to_change_out(change) for change in changes], warnings, is_applied)

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


async def _check_no_stranded_runs(services: Services, tree: QueueTree) -> None:
    """Raises Conflict with the runs that wait in a queue that would not be a leaf of the tree."""
    children = child_queues(tree)
    counts = {
        queue: count
        for queue, count in sorted((await services.queue_cache.count_waiting()).items())
        if queue not in tree.queues or queue in children
    }
    if not counts:
        return
    waiting = await services.runs.list(
        RunFilter(phases=frozenset({RunPhase.QUEUED}), limit=_MAX_LISTED_RUNS, brief=True)
    )
    names = [str(run.name) for run in waiting if run.spec.queue in counts]
    queues = ", ".join(f"{queue} ({count})" for queue, count in counts.items())
    runs = ", ".join(names[:_MAX_NAMED_RUNS]) + (", …" if sum(counts.values()) > _MAX_NAMED_RUNS else "")
    leaves = [name for name in sorted(tree.queues) if name not in children]
    move = (
        f"move them first: `hop update --from-queue {next(iter(counts))} --queue "
        f"{leaves[0] if leaves else 'QUEUE'}`"
    )
    hints = (move, "or keep these queues until their runs have started, or end the runs: `hop stop RUN`")
    raise Conflict(
        f"runs wait in queues that would be removed or get children: {queues}: {runs}", hints=hints
    )

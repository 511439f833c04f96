"""Changing a run: what it asks for while it waits, what it is called at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hopyard.config.schemas.run_rules import check_spec
from hopyard.domain.effective_limits import effective_admins
from hopyard.domain.ids import QueueName, RunId, check_label
from hopyard.domain.queue import QueueTree
from hopyard.domain.run import RoleSpec, Run, RunEvent, RunEventKind, RunPhase, RunSpec
from hopyard.domain.run_change import changes_scheduling, describe_changes
from hopyard.errors import Conflict, SpecError
from hopyard.server.authentication import Caller
from hopyard.server.authorization import check_may_change
from hopyard.server.queue_cache import assign_queue
from hopyard.server.services import Services
from hopyard.server.submit_run import check_can_ever_start, check_trial_queue

_MAX_ATTEMPTS = 5  # at a run that others change at the same moment


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """What is to be different; None leaves it. remove_time_limit: it is to have no time limit.
    tags are merged in, `untag` removed."""

    queue: QueueName | None = None
    priority: int | None = None
    time_limit_s: float | None = None
    remove_time_limit: bool = False
    roles: tuple[RoleSpec, ...] | None = None
    held: bool | None = None
    label: str | None = None
    note: str | None = None
    tags: Mapping[str, str] | None = None
    untag: Sequence[str] = ()


async def update_run(
    services: Services, run_id: RunId, update: RunUpdate, caller: Caller
) -> tuple[Run, list[str]]:
    """The run as it is now, and what was changed, in words.

    Raises NotFound; Forbidden for a caller whose run it is not, and who may not use the queue; SpecError and
    DoesNotFit as for a submission; Conflict where the run does not wait any more.
    """
    for _ in range(_MAX_ATTEMPTS):
        before = await services.runs.get(run_id)
        after = await _apply_update(services, before, update, caller)
        done = describe_changes(before, after)
        if not done:
            return before, []
        event = RunEvent(services.now(), RunEventKind.CHANGED, f"by {caller.user}: {'; '.join(done)}")
        try:
            await services.controller.update_run(before, after, event)
        except Conflict as late:
            if (
                changes_scheduling(before, after)
                and (await services.runs.get(run_id)).phase is not RunPhase.QUEUED
            ):
                raise
            last = late
            continue
        return await services.runs.get(run_id), done
    raise last


async def _apply_update(services: Services, before: Run, update: RunUpdate, caller: Caller) -> Run:
    tree, owner = await services.queue_cache.tree(), services.queue_cache.owner
    check_may_change(caller, before, tree, owner=owner)
    spec = _updated_spec(before, update)
    if (spec.queue, spec.priority) != (before.spec.queue, before.spec.priority):
        spec = _requeued_spec(tree, before, spec, update, user=caller.require_user(), owner=owner)
    held_by = (
        before.held_by if update.held is None else (before.held_by or caller.user) if update.held else None
    )
    after = replace(
        before, spec=spec, held_by=held_by, note=before.note if update.note is None else update.note
    )
    if spec != before.spec:
        check_spec(spec)
        if changes_scheduling(before, after) and before.phase is RunPhase.QUEUED:
            await check_can_ever_start(services, spec, before.name.user, await services.node_cache.get())
    return after


def _updated_spec(before: Run, update: RunUpdate) -> RunSpec:
    """The spec with what is wished of it. Raises SpecError."""
    spec = before.spec
    limit = (
        None
        if update.remove_time_limit
        else spec.time_limit_s
        if update.time_limit_s is None
        else update.time_limit_s
    )
    roles = spec.roles if update.roles is None else _resized_roles(before, update.roles)
    if spec.parent is not None and (limit != spec.time_limit_s or roles != spec.roles):
        hints = (
            "change its queue or its priority, or hold it",
            "change the file of the study, and start a new study",
        )
        raise SpecError(f"run {before.name} is a trial; its study sets its requests", hints=hints)
    tags = {**spec.tags, **(update.tags or {})}
    for key in update.untag:
        if key not in spec.tags:
            raise SpecError(
                f"untag: run {before.name} has no tag `{key}`",
                hints=(f"it has {', '.join(sorted(spec.tags)) or 'none'}",),
            )
        tags.pop(key, None)
    return replace(
        spec,
        queue=update.queue or spec.queue,
        priority=spec.priority if update.priority is None else update.priority,
        time_limit_s=limit,
        roles=roles,
        label=spec.label if update.label is None else check_label(update.label, subject="label"),
        tags=tags,
    )


def _resized_roles(before: Run, roles: tuple[RoleSpec, ...]) -> tuple[RoleSpec, ...]:
    """Raises SpecError unless they differ from the run's in their resources only."""
    old = before.spec.roles
    if [replace(role, resources=old[0].resources) for role in roles] != [
        replace(role, resources=old[0].resources) for role in old
    ]:
        hint = f"run it again with other commands, replicas or places: `hop fork {before.name}`"
        raise SpecError("roles: only the resources of a role can be changed", hints=(hint,))
    return roles


def _requeued_spec(
    tree: QueueTree, before: Run, spec: RunSpec, update: RunUpdate, *, user: str, owner: str
) -> RunSpec:
    """With a queue that whoever changes the run may use, and its user as well, unless an administrator of the
    queue puts it there. A priority that was not asked for anew, and that the new queue does not allow,
    becomes the default there."""

    def placed_by(user: str, wanted: RunSpec) -> RunSpec:
        placed = assign_queue(tree, wanted, user=user, owner=owner)
        check_trial_queue(tree, placed, user=user, owner=owner)
        return placed

    def tried(wanted: RunSpec) -> RunSpec:
        placed = placed_by(user, wanted)
        if placed.queue is not None and user not in (*effective_admins(tree, placed.queue), owner):
            placed = placed_by(before.name.user, wanted)
        return placed

    if update.priority is not None or spec.queue == before.spec.queue:
        return tried(spec)
    try:
        return tried(spec)
    except SpecError:
        return tried(replace(spec, priority=None))

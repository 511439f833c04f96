"""Changes runs: requests and scheduling while a run waits, labels, notes and tags at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hopyard.config.schemas.run_rules import check_spec
from hopyard.domain.effective_limits import effective_admins
from hopyard.domain.ids import QueueName, RunId, check_label
from hopyard.domain.queue import QueueTree
from hopyard.domain.run import RoleSpec, Run, RunEvent, RunEventKind, RunPhase, RunSpec
from hopyard.domain.run_change import changes_scheduling, describe_changes, not_archivable_conflict
from hopyard.errors import Conflict, SpecError
from hopyard.server.authentication import Caller
from hopyard.server.authorization import check_may_change
from hopyard.server.queue_cache import assign_queue
from hopyard.server.services import Services
from hopyard.server.submit_run import check_can_ever_start, check_trial_queue

_MAX_ATTEMPTS = 5  # retries when other requests change the run at the same time


@dataclass(frozen=True, slots=True)
class ReplacedText:
    """What a change of label, note and tags replaces, as its user read it. A field that is None, and a tag
    that is absent here, is not compared. The value of a tag is None if the run had no such tag."""

    label: str | None = None
    note: str | None = None
    tags: Mapping[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """The fields to change; None leaves a field unchanged. remove_time_limit: removes the time limit. tags
    are merged into the existing ones, and `untag` is removed. replaced: a run with other values is not
    changed."""

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
    archived: bool | None = None
    replaced: ReplacedText | None = None


async def update_run(
    services: Services, run_id: RunId, update: RunUpdate, caller: Caller
) -> tuple[Run, list[str]]:
    """Changes a run. Returns the run and descriptions of the changes.

    Raises NotFound; Forbidden for a caller who may not change the run or use the queue; SpecError and
    DoesNotFit as for a submission; Conflict if the run no longer waits, or has other values than
    `replaced`.
    """
    for _ in range(_MAX_ATTEMPTS):
        before = await services.runs.get(run_id)
        if update.replaced is not None:
            _check_replaced(before, update, update.replaced)
        after = await _apply_update(services, before, update, caller)
        changes = describe_changes(before, after)
        if not changes:
            return before, []
        event = RunEvent(services.now(), RunEventKind.CHANGED, f"by {caller.user}: {'; '.join(changes)}")
        try:
            await services.controller.update_run(before, after, event)
        except Conflict as error:
            if (
                changes_scheduling(before, after)
                and (await services.runs.get(run_id)).phase is not RunPhase.QUEUED
            ):
                raise
            last_error = error
            continue
        return await services.runs.get(run_id), changes
    raise last_error


def _check_replaced(before: Run, update: RunUpdate, replaced: ReplacedText) -> None:
    """Raises Conflict if another change would be lost. An equal change is not a conflict."""
    changed = [
        name
        for name, stored, read, wanted in (
            ("name", before.spec.label, replaced.label, update.label),
            ("note", before.note, replaced.note, update.note),
        )
        if read is not None and stored not in (read, wanted)
    ]
    added = update.tags or {}
    for key, read in (replaced.tags or {}).items():
        stored = before.spec.tags.get(key)
        if stored != read and (stored is None or stored != added.get(key)):
            changed.append(f"tag `{key}`")
    if changed:
        raise Conflict(
            f"run {before.name} was changed meanwhile: {', '.join(changed)}",
            hints=("read the run again, and repeat the change",),
        )


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
        before,
        spec=spec,
        held_by=held_by,
        note=before.note if update.note is None else update.note,
        archived=before.archived if update.archived is None else update.archived,
    )
    if after.archived and not before.archived and not before.phase.is_final:
        raise not_archivable_conflict(before)
    if spec != before.spec:
        check_spec(spec)
        if changes_scheduling(before, after) and before.phase is RunPhase.QUEUED:
            await check_can_ever_start(services, spec, before.name.user, await services.node_cache.get())
    return after


def _updated_spec(before: Run, update: RunUpdate) -> RunSpec:
    """Returns the spec with the requested changes. Raises SpecError."""
    spec = before.spec
    time_limit_s = (
        None
        if update.remove_time_limit
        else spec.time_limit_s
        if update.time_limit_s is None
        else update.time_limit_s
    )
    roles = spec.roles if update.roles is None else _resized_roles(before, update.roles)
    if spec.parent is not None and (time_limit_s != spec.time_limit_s or roles != spec.roles):
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
        time_limit_s=time_limit_s,
        roles=roles,
        label=spec.label if update.label is None else check_label(update.label, subject="label"),
        tags=tags,
    )


def _resized_roles(before: Run, roles: tuple[RoleSpec, ...]) -> tuple[RoleSpec, ...]:
    """Raises SpecError unless the roles differ from the run's in their resources only."""
    current = before.spec.roles
    if [replace(role, resources=current[0].resources) for role in roles] != [
        replace(role, resources=current[0].resources) for role in current
    ]:
        hint = f"run it again with other commands, replicas or node selectors: `hop fork {before.name}`"
        raise SpecError("roles: only the resources of a role can be changed", hints=(hint,))
    return roles


def _requeued_spec(
    tree: QueueTree, before: Run, spec: RunSpec, update: RunUpdate, *, user: str, owner: str
) -> RunSpec:
    """Returns the spec with a queue that both the caller and the run's user may use; a caller who administers
    the queue may use it for every user.

    If the current priority is not allowed in the new queue, and the update does not set one, it becomes the
    default of the queue.
    """

    def assign_as(user: str, requested: RunSpec) -> RunSpec:
        assigned = assign_queue(tree, requested, user=user, owner=owner)
        check_trial_queue(tree, assigned, user=user, owner=owner)
        return assigned

    def assign(requested: RunSpec) -> RunSpec:
        assigned = assign_as(user, requested)
        if assigned.queue is not None and user not in (*effective_admins(tree, assigned.queue), owner):
            assigned = assign_as(before.name.user, requested)
        return assigned

    if update.priority is not None or spec.queue == before.spec.queue:
        return assign(spec)
    try:
        return assign(spec)
    except SpecError:
        return assign(replace(spec, priority=None))

"""Changing a run: what it asks for while it waits, what it is called at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hopyard.domain.ids import QueueName, RunId, check_label
from hopyard.domain.queue import QueueTree
from hopyard.domain.quota import admins
from hopyard.domain.run import RoleSpec, Run, RunEvent, RunEventKind, RunPhase, RunSpec
from hopyard.domain.run_change import changes, waits_otherwise
from hopyard.errors import Conflict, SpecError
from hopyard.server.accept import check_may_start, check_spec, check_trials
from hopyard.server.auth import Caller
from hopyard.server.parts import Parts
from hopyard.server.queues import in_queue
from hopyard.server.rights import check_may_change

_TRIES = 5  # at a run that others change at the same moment


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be different; None leaves it. without_limit: it is to have no time limit.
    tags are merged in, `untag` removed."""

    queue: QueueName | None = None
    priority: int | None = None
    time_limit_s: float | None = None
    without_limit: bool = False
    roles: tuple[RoleSpec, ...] | None = None
    hold: bool | None = None
    label: str | None = None
    note: str | None = None
    tags: Mapping[str, str] | None = None
    untag: Sequence[str] = ()


async def update_run(parts: Parts, run_id: RunId, wish: Wish, caller: Caller) -> tuple[Run, list[str]]:
    """The run as it is now, and what was changed, in words.

    Raises NotFound; Forbidden for a caller whose run it is not, and who may not use the queue; SpecError and
    DoesNotFit as for a submission; Conflict where the run does not wait any more.
    """
    for _ in range(_TRIES):
        before = await parts.runs.get(run_id)
        after = await _changed(parts, before, wish, caller)
        done = changes(before, after)
        if not done:
            return before, []
        event = RunEvent(parts.now(), RunEventKind.CHANGED, f"by {caller.user}: {'; '.join(done)}")
        try:
            await parts.controller.change(before, after, event)
        except Conflict as late:
            if waits_otherwise(before, after) and (await parts.runs.get(run_id)).phase is not RunPhase.QUEUED:
                raise
            last = late
            continue
        return await parts.runs.get(run_id), done
    raise last


async def _changed(parts: Parts, before: Run, wish: Wish, caller: Caller) -> Run:
    tree, owner = await parts.queues.tree(), parts.queues.owner
    check_may_change(caller, before, tree, owner=owner)
    spec = _asked(before, wish)
    if (spec.queue, spec.priority) != (before.spec.queue, before.spec.priority):
        spec = _in_queue(tree, before, spec, wish, user=caller.require_user(), owner=owner)
    held_by = before.held_by if wish.hold is None else (before.held_by or caller.user) if wish.hold else None
    after = replace(before, spec=spec, held_by=held_by, note=before.note if wish.note is None else wish.note)
    if spec != before.spec:
        check_spec(spec)
        if waits_otherwise(before, after) and before.phase is RunPhase.QUEUED:
            await check_may_start(parts, spec, before.name.user, await parts.nodes.get())
    return after


def _asked(before: Run, wish: Wish) -> RunSpec:
    """The spec with what is wished of it. Raises SpecError."""
    spec = before.spec
    limit = (
        None if wish.without_limit else spec.time_limit_s if wish.time_limit_s is None else wish.time_limit_s
    )
    roles = spec.roles if wish.roles is None else _resized(before, wish.roles)
    if spec.parent is not None and (limit != spec.time_limit_s or roles != spec.roles):
        hints = (
            "its queue and its priority can be changed, and it can be held",
            "change the study's file, and start another study",
        )
        raise SpecError(f"run {before.name} is a trial, and asks for what its study says", hints=hints)
    tags = {**spec.tags, **(wish.tags or {})}
    for key in wish.untag:
        if key not in spec.tags:
            raise SpecError(
                f"untag: run {before.name} has no tag `{key}`",
                hints=(f"it has {', '.join(sorted(spec.tags)) or 'none'}",),
            )
        tags.pop(key, None)
    return replace(
        spec,
        queue=wish.queue or spec.queue,
        priority=spec.priority if wish.priority is None else wish.priority,
        time_limit_s=limit,
        roles=roles,
        label=spec.label if wish.label is None else check_label(wish.label, what="label"),
        tags=tags,
    )


def _resized(before: Run, roles: tuple[RoleSpec, ...]) -> tuple[RoleSpec, ...]:
    """Raises SpecError unless they differ from the run's in their resources only."""
    old = before.spec.roles
    if [replace(role, resources=old[0].resources) for role in roles] != [
        replace(role, resources=old[0].resources) for role in old
    ]:
        hint = f"`hop fork {before.name}` runs it again with other commands, replicas or places"
        raise SpecError("roles: only the resources of each can be changed", hints=(hint,))
    return roles


def _in_queue(tree: QueueTree, before: Run, spec: RunSpec, wish: Wish, *, user: str, owner: str) -> RunSpec:
    """With a queue that whoever changes the run may use, and its user as well, unless an administrator of the
    queue puts it there. A priority that was not asked for anew, and that the new queue does not allow,
    becomes the default there."""

    def placed_by(user: str, wanted: RunSpec) -> RunSpec:
        placed = in_queue(tree, wanted, user=user, owner=owner)
        check_trials(tree, placed, user=user, owner=owner)
        return placed

    def tried(wanted: RunSpec) -> RunSpec:
        placed = placed_by(user, wanted)
        if placed.queue is not None and user not in (*admins(tree, placed.queue), owner):
            placed = placed_by(before.name.user, wanted)
        return placed

    if wish.priority is not None or spec.queue == before.spec.queue:
        return tried(spec)
    try:
        return tried(spec)
    except SpecError:
        return tried(replace(spec, priority=None))

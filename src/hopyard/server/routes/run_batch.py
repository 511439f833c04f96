"""One action on many runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from hopyard.config.schemas.fields import MAX_NAMES, Id, Key, RequestModel, Text
from hopyard.domain.ids import RunId
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import Run
from hopyard.errors import Conflict, HopyardError, NotFound, SpecError
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.audit import STOP_ACTION, record_for_each
from hopyard.server.authentication import Caller
from hopyard.server.authorization import check_may_stop
from hopyard.server.delete_run import delete_run, freed_bytes
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.responses import ErrorDetail
from hopyard.server.services import Services
from hopyard.server.update_run import RunUpdate, update_run

MAX_BATCH_RUNS = 1000
_CONCURRENCY = 16  # so that their writes share commits
_ACTION = "run.batch"
_AUDIT_ACTIONS = {
    "stop": STOP_ACTION,
    "delete": "run.delete",
    "archive": "run.update",
    "unarchive": "run.update",
    "tag": "run.update",
}


class BatchIn(RequestModel):
    """action: what to do with each run; `tag` adds `tags` and removes those of `untag` that a run has.
    grace_s: of a stop. force: a deletion ends live runs first. dry_run: of a deletion; nothing is deleted."""

    runs: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=MAX_BATCH_RUNS)]
    action: Literal["stop", "delete", "archive", "unarchive", "tag", "star", "unstar"]
    tags: Annotated[dict[Key, Text], Meta(max_length=MAX_NAMES)] | None = None
    untag: Annotated[tuple[Key, ...], Meta(max_length=MAX_NAMES)] = ()
    grace_s: Annotated[float, Meta(ge=0, le=3600.0)] = 10.0
    force: bool = False
    dry_run: bool = False


class BatchResultOut(Struct, frozen=True):
    """done: whether the run is now as requested. changes: what changed; empty if nothing had to. error: why
    it was refused."""

    id: str
    name: str | None
    done: bool
    changes: list[str]
    error: ErrorDetail | None


class BatchOut(Struct, frozen=True):
    """results: in the order of the request, each run once. frees_bytes: of a deletion, about how many bytes
    it frees: streams, and trees that only these runs and their trials refer to."""

    results: list[BatchResultOut]
    frees_bytes: int | UnsetType = UNSET


def run_batch_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def batch(request: ApiRequest[Empty, BatchIn]) -> BatchOut:
        """Stop, delete, archive, tag or star up to 1000 runs, with a result for each. A refusal of one run
        does not stop the others. Each change has the permissions and the audit record of the request for a
        single run. A dry run of a deletion returns what it would do, and the bytes that it frees."""
        body, caller = request.body, request.caller
        caller.require_user()
        _check(body)
        ids = [RunId(run) for run in dict.fromkeys(body.runs)]
        found = {run.id: run for run in await _find(services, ids)}
        deleting = body.action == "delete"
        allowed: list[Run] = []
        if deleting:
            allowed = [
                run for run in found.values() if await _deletion_error(services, caller, run, body) is None
            ]
        frees = await freed_bytes(services, allowed) if deleting else UNSET
        limit, changed = asyncio.Semaphore(_CONCURRENCY), list[Run]()

        async def apply(run_id: RunId) -> BatchResultOut:
            run = found.get(run_id)
            if run is None:
                error = NotFound(f"no run has the id {run_id}", hints=("list the runs with `hop ps --all`",))
                return _refused(run_id, None, error)
            try:
                async with limit:
                    changes = await _apply(services, caller, run, body)
            except HopyardError as error:
                return _refused(run_id, run, error)
            if changes and not body.dry_run:
                changed.append(run)
            return BatchResultOut(run_id, str(run.name), True, changes, None)

        results = list(await asyncio.gather(*map(apply, ids)))
        action = _AUDIT_ACTIONS.get(body.action)
        if action is not None and changed:
            await record_for_each(
                services.audit, request.request, caller, action, changed,
                cause_action=_ACTION, now=services.now(),
            )  # fmt: skip
        return BatchOut(results, frees)

    return [
        Endpoint(
            "POST",
            "/runs/batch",
            batch,
            body=BatchIn,
            returns=BatchOut,
            errors=(400,),
            audit=_ACTION,
            is_heavy=True,
        )
    ]


def _check(body: BatchIn) -> None:
    """Raises SpecError for fields of another action."""
    has_tags = bool(body.tags or body.untag)
    if has_tags is not (body.action == "tag"):
        raise SpecError(
            "tags: they belong to the action `tag`" if has_tags else "tags: the action `tag` needs tags",
            hints=("give `tags` or `untag` with the action `tag`, and with no other",),
        )
    if (body.dry_run or body.force) and body.action != "delete":
        field = "dry_run" if body.dry_run else "force"
        raise SpecError(f"{field}: it belongs to the action `delete`", hints=(f"leave out `{field}`",))


async def _find(services: Services, ids: Sequence[RunId]) -> list[Run]:
    return list(await services.runs.list(RunFilter(ids=frozenset(ids), limit=len(ids), brief=True)))


async def _deletion_error(services: Services, caller: Caller, run: Run, body: BatchIn) -> HopyardError | None:
    """Returns why the run cannot be deleted."""
    try:
        await _check_may_delete(services, caller, run, body)
    except HopyardError as error:
        return error
    return None


async def _check_may_delete(services: Services, caller: Caller, run: Run, body: BatchIn) -> None:
    """Raises Forbidden, and Conflict for a live run without `force`."""
    tree = await services.queue_cache.tree()
    check_may_stop(caller, run, tree, owner=services.queue_cache.owner)
    if not (body.force or run.phase.is_final or run.is_being_synced):
        raise Conflict("the run has not ended", hints=("stop it first, or set `force`",))


async def _apply(services: Services, caller: Caller, run: Run, body: BatchIn) -> list[str]:
    """Applies the action to a run; returns descriptions of what changed."""
    if body.action == "stop":
        check_may_stop(caller, run, await services.queue_cache.tree(), owner=services.queue_cache.owner)
        if run.phase.is_final:
            return []
        await services.controller.stop(run.id, StopOrder.for_request(body.grace_s, "", preempt=False))
        return ["stopped"]
    if body.action == "delete":
        await _check_may_delete(services, caller, run, body)
        if not body.dry_run:
            with suppress(NotFound):  # a trial was deleted with its study
                await delete_run(services, run, force=body.force)
        return ["deleted"]
    if body.action in ("star", "unstar"):
        starred = body.action == "star"
        if starred is (run.id in await services.runs.starred_of(caller.user, [run.id])):
            return []
        await services.runs.set_starred(run.id, caller.user, starred)
        return ["starred" if starred else "unstarred"]
    if body.action == "tag":
        tags = (await services.runs.get(run.id)).spec.tags  # those of a listing are truncated
        untag = [key for key in body.untag if key in tags]
        update = RunUpdate(tags=body.tags, untag=untag)
    else:
        update = RunUpdate(archived=body.action == "archive")
    return (await update_run(services, run.id, update, caller))[1]


def _refused(run_id: RunId, run: Run | None, error: HopyardError) -> BatchResultOut:
    detail = ErrorDetail(error.code, error.message, list(error.hints))
    return BatchResultOut(run_id, None if run is None else str(run.name), False, [], detail)

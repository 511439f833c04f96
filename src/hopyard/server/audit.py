"""Writing down who changed what: for every endpoint that changes something, and for whatever is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from hopyard.domain.audit import AuditRecord, Outcome
from hopyard.domain.ids import RunId
from hopyard.domain.run import Run
from hopyard.errors import HopyardError, NotFound, ServerUnavailable
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.run_store import RunStore
from hopyard.server.answers import log
from hopyard.server.auth import Caller
from hopyard.server.rates import TokenBucket
from hopyard.server.wire import RunOut

T = TypeVar("T")
STOP = "run.stop"  # the action
# in the state of a request: who its connection came from, where the protocol knows more than the address
PEER = "peer"
_LETTERS, _NAMES = 200, 50
# What is kept of queries and bodies: names, amounts and switches. Everything else may hold a secret: env,
# parameters, commands, tokens.
_KEPT = frozenset(
    [
        "project",
        "label",
        "queue",
        "priority",
        "preemptible",
        "time_limit_s",
        "max_attempts",
        "forked_from",
        "parent",
        "id",
        "name",
        "user",
        "users",
        "runs",
        "grace_s",
        "at_safe_point",
        "force",
        "version",
        "manifest",
        "message",
        "metric",
        "higher_is_better",
        "kept",
        "keep",
        "hold",
        "reason",
        "scope",
        "scopes",
        "expires_at",
        "expires_s",
        "stop_runs",
        "trust",
        "step",
        "epochs",
        "trials",
        "gpus",
        "cpu_milli",
        "memory_bytes",
        "replicas",
        "start_at",
        "end_at",
        "nodes",
        "pools",
        "dry_run",
        "overlap",
        "started_at",
    ]
)
_NAMED = frozenset({"env", "queues", "secrets", "tags"})  # mappings of which the names are kept
_WRITTEN = frozenset({"note"})  # texts of which only the presence or the removal is recorded
_OPENED = frozenset({"spec", "tree", "changes"})
_REFUSALS_PER_S, _REFUSALS_AT_ONCE = 0.5, 50.0  # of one user that are written down
# of all that come without a valid token: replicas of a copied home, too, come for ever
_STRANGERS_PER_S = 1 / 60
_REMEMBERED = 1024


class Auditor:
    """runs: for the names of runs, which are told also when the run is deleted."""

    def __init__(self, store: AuditStore, runs: RunStore, *, now: Callable[[], datetime]) -> None:
        self._store, self._runs, self._now = store, runs, now
        self._refusals: dict[str, TokenBucket] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def target(self, path: Mapping[str, str]) -> tuple[str, str]:
        """Name and id of what an address is about, before it is changed."""
        if "id" in path:
            try:
                return str((await self._runs.get(RunId(path["id"]))).name), path["id"]
            except NotFound:
                return path["id"], path["id"]
        return " ".join(path.values()), ""

    async def change(
        self,
        action: str,
        request: Request,
        caller: Caller,
        path: Mapping[str, str],
        asked: Sequence[Any],
        make: Callable[[], Awaitable[T]],
    ) -> T:
        """Make a change, which is durable together with its record. A change in several steps, of which a
        later one fails, is recorded as failed. What changes no database is recorded afterwards. An outage
        after a step is raised without a time to retry: clients repeat a request by themselves only where
        nothing of it was done."""
        target, detail = await self.target(path), _detail(asked)
        record = self._record(
            action,
            request,
            caller,
            (target[0] or str(detail.get("name", "")), target[1]),
            Outcome.DONE,
            detail,
        )
        with self._store.joined(record) as joined:
            try:
                result = await make()
            except Exception as error:
                failed = replace(record, outcome=Outcome.FAILED)
                if joined.stored_id is not None and isinstance(error, ServerUnavailable):
                    error.retry_after_s = None
                if joined.stored_id is not None:
                    await self._correct(joined.stored_id, failed)
                elif not isinstance(error, (HopyardError, ClientDisconnect)):
                    await self._store.record(failed)
                raise
        full = _with_result(record, result)
        if joined.stored_id is None:
            try:
                await self._store.record(full)
            except ServerUnavailable as outage:
                outage.retry_after_s = None
                raise
        elif full != record:
            await self._correct(joined.stored_id, full)
        return result

    def changed(
        self, action: str, request: Request, caller: Caller, asked: Sequence[Any], result: Any
    ) -> None:
        """A change was made that names its own user: its record is queued, and shares the next commit."""
        record = _with_result(
            self._record(action, request, caller, ("", ""), Outcome.DONE, _detail(asked)), result
        )
        task = asyncio.get_running_loop().create_task(self._write(record))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _correct(self, stored_id: int, record: AuditRecord) -> None:
        """The change is recorded already, so its answer does not depend on this."""
        try:
            await self._store.correct(stored_id, record)
        except HopyardError as failed:
            log.warning(
                "the record of %s of %s by %s could not be completed: %s",
                record.action,
                record.target,
                record.user,
                failed.message,
            )

    async def refused(
        self, action: str, request: Request, caller: Caller, path: Mapping[str, str], error: HopyardError
    ) -> None:
        """Somebody asked for what they may not do. Of very many only some are written down, or strangers
        could fill the database."""
        bucket = self._refusals.get(caller.user)
        now = time.monotonic()
        if bucket is None:
            if len(self._refusals) >= _REMEMBERED:
                self._refusals.clear()
            bucket = self._refusals[caller.user] = TokenBucket(
                _REFUSALS_PER_S if caller.user else _STRANGERS_PER_S, _REFUSALS_AT_ONCE, now
            )
        if bucket.take(1, now):
            return
        target = (await self.target(path)) if caller.user else (" ".join(path.values())[:_LETTERS], "")
        record = self._record(
            action, request, caller, target, Outcome.REFUSED, {"why": error.message[:_LETTERS]}
        )
        await self._write(record)

    async def _write(self, record: AuditRecord) -> None:
        """Of what stands whether or not it can be recorded."""
        try:
            await self._store.record(record)
        except HopyardError as full:
            log.warning(
                "%s of %s by %s was not recorded: %s", record.action, record.target, record.user, full.message
            )

    def _record(
        self,
        action: str,
        request: Request,
        caller: Caller,
        target: tuple[str, str],
        outcome: Outcome,
        detail: Mapping[str, Any],
    ) -> AuditRecord:
        return AuditRecord(
            self._now(), caller.user, action, *target, outcome, _origin(request), caller.token, detail
        )


def _with_result(record: AuditRecord, result: Any) -> AuditRecord:
    """With the run that was made."""
    if not isinstance(result, RunOut) or result.id == record.target_id:
        return record
    if not record.target_id:
        return replace(record, target=result.name, target_id=result.id)
    return replace(record, detail={**record.detail, "made": result.name})


async def record_stops(
    store: AuditStore, request: Request, caller: Caller, runs: Sequence[Run], *, cause: str, now: datetime
) -> None:
    """Runs were asked to end by another action than `run.stop`: cause, such as `user.remove`.
    They are asked also where the disk is too full for these records: that is logged."""
    records = [
        AuditRecord(
            now,
            caller.user,
            STOP,
            str(run.name),
            run.id,
            Outcome.DONE,
            _origin(request),
            caller.token,
            {"cause": cause},
        )
        for run in runs
    ]
    try:
        await asyncio.gather(*map(store.record, records))
    except HopyardError as full:
        log.warning(
            "the user that stopped %s was not recorded: %s",
            ", ".join(str(run.name) for run in runs),
            full.message,
        )


def _origin(request: Request) -> str:
    state = request.scope.get("state")
    known = state.get(PEER) if state else None
    return known or (request.client.host if request.client else "")


def _detail(asked: Sequence[Any]) -> dict[str, Any]:
    """What was asked for in query and body, as far as it can hold no secret."""
    found: dict[str, Any] = {}
    for part in asked:
        if isinstance(part, msgspec.Struct):
            _keep(found, msgspec.structs.asdict(part), part)
    return found


def _keep(found: dict[str, Any], given: Mapping[str, Any], part: Any) -> None:
    defaults = _defaults(type(part)) if isinstance(part, msgspec.Struct) else {}
    for name, value in given.items():
        if name in _OPENED and value is not None:
            inner = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
            if isinstance(inner, Mapping):
                _keep(found, inner, value)
        elif name in _NAMED and isinstance(value, Mapping) and value:
            found[name] = [str(one)[:_LETTERS] for one in list(value)[:_NAMES]]
        elif name in _WRITTEN and isinstance(value, str):
            found[name] = "written" if value else "removed"
        elif (
            name in _KEPT
            and value is not None
            and value is not msgspec.UNSET
            and defaults.get(name, msgspec.UNSET) != value
        ):
            kept = _plain(value)
            if kept is not None:
                found[name] = kept


@cache  # msgspec resolves the types of all fields each time, which takes a millisecond
def _defaults(shape: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {field.encode_name: field.default for field in msgspec.structs.fields(shape)}


def _plain(value: Any) -> Any:
    """Single values, short lists and short mappings of them; None for all else."""
    value = msgspec.to_builtins(value)
    if isinstance(value, str):
        return value[:_LETTERS]
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value[:_NAMES] if isinstance(one, (str, bool, int, float))] or None
    if isinstance(value, Mapping):
        plain = {
            str(name)[:_LETTERS]: _plain(one)
            for name, one in list(value.items())[:_NAMES]
            if isinstance(one, (str, bool, int, float))
        }
        return plain or None
    return None

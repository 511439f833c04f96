"""Audit log of the API: records each change and each refused request."""

from __future__ import annotations

import asyncio
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
from hopyard.server.authentication import Caller
from hopyard.server.rates import RefusalRates
from hopyard.server.responses import log
from hopyard.server.schemas.runs import RunOut

T = TypeVar("T")
STOP_ACTION = "run.stop"
# in the state of a request: the peer of its connection, if the protocol knows more than the address
PEER_SCOPE_KEY = "peer"
_MAX_TEXT_LENGTH, _MAX_NAMES = 200, 50
# Recorded fields of queries and bodies: names, amounts and switches. All other fields may contain a secret:
# env, parameters, commands, tokens.
_RECORDED_FIELDS = frozenset(
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
        "signal",
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
        "port",
        "rank",
        "archived",
        "access",
        "revision",
        "action",
        "shared",
    ]
)
_NAME_ONLY_FIELDS = frozenset(
    {"env", "queues", "secrets", "tags"}
)  # mappings of which only the names are recorded
_FLAG_ONLY_FIELDS = frozenset({"note"})  # texts of which only the presence or the removal is recorded
_NESTED_FIELDS = frozenset({"spec", "tree", "changes"})


class Auditor:
    """Writes audit records. runs: resolves the names of runs, which are recorded even when the run is
    deleted."""

    def __init__(self, store: AuditStore, runs: RunStore, *, now: Callable[[], datetime]) -> None:
        self._store, self._runs, self._now = store, runs, now
        self._refusals = RefusalRates()
        self._write_tasks: set[asyncio.Task[None]] = set()

    async def resolve_target(self, path: Mapping[str, str]) -> tuple[str, str]:
        """Returns name and id of the target of a path, before it is changed."""
        if "id" in path:
            try:
                return str((await self._runs.get(RunId(path["id"]))).name), path["id"]
            except NotFound:
                return path["id"], path["id"]
        return " ".join(path.values()), ""

    async def run_audited(
        self,
        action: str,
        request: Request,
        caller: Caller,
        path: Mapping[str, str],
        inputs: Sequence[Any],
        perform: Callable[[], Awaitable[T]],
    ) -> T:
        """Makes a change that is durable together with its record.

        If a change has several steps and a later one fails, it is recorded as failed. A change outside the
        database is recorded afterwards. An outage after a step is raised without a time to retry:
        clients retry a request by themselves only if no part of it was done.
        """
        target, detail = await self.resolve_target(path), _detail(inputs)
        record = self._make_record(
            action,
            request,
            caller,
            (target[0] or str(detail.get("name", "")), target[1]),
            Outcome.DONE,
            detail,
        )
        with self._store.record_with_change(record) as linked_record:
            try:
                result = await perform()
            except Exception as error:
                failed_record = replace(record, outcome=Outcome.FAILED)
                if linked_record.stored_id is not None and isinstance(error, ServerUnavailable):
                    error.retry_after_s = None
                if linked_record.stored_id is not None:
                    await self._update_record(linked_record.stored_id, failed_record)
                elif not isinstance(error, (HopyardError, ClientDisconnect)):
                    await self._store.record(failed_record)
                raise
        completed_record = _with_result(record, result)
        if linked_record.stored_id is None:
            try:
                await self._store.record(completed_record)
            except ServerUnavailable as error:
                error.retry_after_s = None
                raise
        elif completed_record != record:
            await self._update_record(linked_record.stored_id, completed_record)
        return result

    def record_change(
        self, action: str, request: Request, caller: Caller, inputs: Sequence[Any], result: Any
    ) -> None:
        """Records a change whose result names its own user. The record is queued, and shares the next
        commit."""
        record = _with_result(
            self._make_record(action, request, caller, ("", ""), Outcome.DONE, _detail(inputs)), result
        )
        task = asyncio.get_running_loop().create_task(self._queue_record(record))
        self._write_tasks.add(task)
        task.add_done_callback(self._write_tasks.discard)

    async def _update_record(self, stored_id: int, record: AuditRecord) -> None:
        """Completes a record. The change is recorded already, so the response does not depend on this."""
        try:
            await self._store.update_record(stored_id, record)
        except HopyardError as error:
            log.warning(
                "the record of %s of %s by %s could not be completed: %s",
                record.action,
                record.target,
                record.user,
                error.message,
            )

    async def record_refusal(
        self, action: str, request: Request, caller: Caller, path: Mapping[str, str], error: HopyardError
    ) -> None:
        """Records a refused request. The rate of these records is limited, so that strangers cannot fill the
        database."""
        if not self._refusals.take(caller.user):
            return
        target = (
            (await self.resolve_target(path))
            if caller.user
            else (" ".join(path.values())[:_MAX_TEXT_LENGTH], "")
        )
        record = self._make_record(
            action, request, caller, target, Outcome.REFUSED, {"why": error.message[:_MAX_TEXT_LENGTH]}
        )
        await self._queue_record(record)

    async def _queue_record(self, record: AuditRecord) -> None:
        """Writes the record of a change that is valid with or without it."""
        try:
            await self._store.record(record)
        except HopyardError as error:
            log.warning(
                "%s of %s by %s was not recorded: %s",
                record.action,
                record.target,
                record.user,
                error.message,
            )

    def _make_record(
        self,
        action: str,
        request: Request,
        caller: Caller,
        target: tuple[str, str],
        outcome: Outcome,
        detail: Mapping[str, Any],
    ) -> AuditRecord:
        return AuditRecord(
            self._now(), caller.user, action, *target, outcome, request_origin(request), caller.token, detail
        )


def _with_result(record: AuditRecord, result: Any) -> AuditRecord:
    """Returns the record with the name and id of the created run."""
    if not isinstance(result, RunOut) or result.id == record.target_id:
        return record
    if not record.target_id:
        return replace(record, target=result.name, target_id=result.id)
    return replace(record, detail={**record.detail, "made": result.name})


async def record_stops(
    store: AuditStore,
    request: Request,
    caller: Caller,
    runs: Sequence[Run],
    *,
    cause_action: str,
    now: datetime,
) -> None:
    """Records stops of runs that another action than `run.stop` caused. cause_action: such as `user.remove`.
    See `record_for_each`."""
    await record_for_each(store, request, caller, STOP_ACTION, runs, cause_action=cause_action, now=now)


async def record_for_each(
    store: AuditStore,
    request: Request,
    caller: Caller,
    action: str,
    runs: Sequence[Run],
    *,
    cause_action: str,
    now: datetime,
) -> None:
    """Records for each run an action that another action caused.

    The runs are changed even if the disk is too full for these records; this is logged.
    """
    records = [
        AuditRecord(
            now,
            caller.user,
            action,
            str(run.name),
            run.id,
            Outcome.DONE,
            request_origin(request),
            caller.token,
            {"cause": cause_action},
        )
        for run in runs
    ]
    try:
        await asyncio.gather(*map(store.record, records))
    except HopyardError as error:
        log.warning(
            "%s of %s was not recorded: %s",
            action,
            ", ".join(str(run.name) for run in runs),
            error.message,
        )


def request_origin(request: Request) -> str:
    """Returns the sender's Unix user where the protocol knows it, else its address."""
    state = request.scope.get("state")
    peer = state.get(PEER_SCOPE_KEY) if state else None
    return peer or (request.client.host if request.client else "")


def _detail(inputs: Sequence[Any]) -> dict[str, Any]:
    """Returns the fields of query and body that cannot contain a secret."""
    detail: dict[str, Any] = {}
    for source in inputs:
        if isinstance(source, msgspec.Struct):
            _collect_fields(detail, msgspec.structs.asdict(source), source)
    return detail


def _collect_fields(detail: dict[str, Any], values: Mapping[str, Any], source: Any) -> None:
    defaults = _defaults(type(source)) if isinstance(source, msgspec.Struct) else {}
    for name, value in values.items():
        if name in _NESTED_FIELDS and value is not None:
            inner = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
            if isinstance(inner, Mapping):
                _collect_fields(detail, inner, value)
        elif name in _NAME_ONLY_FIELDS and isinstance(value, Mapping) and value:
            detail[name] = [str(key)[:_MAX_TEXT_LENGTH] for key in list(value)[:_MAX_NAMES]]
        elif name in _FLAG_ONLY_FIELDS and isinstance(value, str):
            detail[name] = "written" if value else "removed"
        elif (
            name in _RECORDED_FIELDS
            and value is not None
            and value is not msgspec.UNSET
            and defaults.get(name, msgspec.UNSET) != value
        ):
            plain = _plain_value(value)
            if plain is not None:
                detail[name] = plain


@cache  # msgspec resolves the types of all fields each time, which takes a millisecond
def _defaults(shape: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {field.encode_name: field.default for field in msgspec.structs.fields(shape)}


def _plain_value(value: Any) -> Any:
    """Converts single values, short lists and short mappings; returns None for everything else."""
    value = msgspec.to_builtins(value)
    if isinstance(value, str):
        return value[:_MAX_TEXT_LENGTH]
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [
            _plain_value(item) for item in value[:_MAX_NAMES] if isinstance(item, (str, bool, int, float))
        ] or None
    if isinstance(value, Mapping):
        plain = {
            str(name)[:_MAX_TEXT_LENGTH]: _plain_value(item)
            for name, item in list(value.items())[:_MAX_NAMES]
            if isinstance(item, (str, bool, int, float))
        }
        return plain or None
    return None

"""The audit log: changes and refused changes, with their users."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import TEXT, RequestModel, Time
from hopyard.domain.audit import AuditFilter, AuditRecord, Outcome
from hopyard.domain.suggest import closest_name
from hopyard.domain.text import escape
from hopyard.errors import Forbidden, SpecError
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services

_FilterText = Annotated[str, Meta(max_length=400, pattern=TEXT)]


class AuditQuery(RequestModel):
    user: (
        Annotated[
            _FilterText,
            Meta(description="only changes by this user; default: all changes that the caller may see"),
        ]
        | None
    ) = None
    action: (
        Annotated[
            _FilterText,
            Meta(description="an action such as `run.stop`, or a noun such as `run` for all of its actions"),
        ]
        | None
    ) = None
    target: Annotated[_FilterText, Meta(description="a name or an id")] | None = None
    outcome: Outcome | None = None
    since: Time | None = None
    until: Time | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    before: (
        Annotated[int, Meta(ge=0, le=2**62, description="only records older than the record with this id")]
        | None
    ) = None


class AuditOut(Struct, frozen=True):
    """detail: the request, without secrets. token: the ID of the user's token. origin: an address, or `uid N`
    for a process of the server's machine."""

    id: int
    at: datetime
    user: str
    action: str
    target: str
    target_id: str
    outcome: Outcome
    origin: str
    token: str
    detail: Mapping[str, Any]


class AuditsOut(Struct, frozen=True):
    """Newest first. next: `before` of the next page; null at the end."""

    records: list[AuditOut]
    next: int | None


def audit_endpoints(services: Services, actions: Collection[str]) -> Sequence[Endpoint[Any, Any]]:
    """actions: the names of the other endpoints in the audit log."""

    async def audit(request: ApiRequest[AuditQuery, Empty]) -> AuditsOut:
        """List changes and refused changes with their users, newest first, including those of deleted
        objects.

        The owner of the server sees all records, other users see their own changes. 400 for an unknown
        action.
        """
        query, user = request.query, request.caller.require_user()
        if user != services.queue_cache.owner and query.user not in (None, user):
            raise Forbidden(
                f"only {services.queue_cache.owner}, the owner of this server, sees the changes of "
                "other users",
                hints=("remove `user` to see your own changes",),
            )
        where = AuditFilter(
            user=query.user if user == services.queue_cache.owner else user,
            action=query.action,
            target=query.target,
            outcome=query.outcome,
            since=query.since,
            until=query.until,
            before=query.before,
            limit=query.limit + 1,
        )
        records = await services.audit.list(where)
        # an older version may have recorded other actions
        if query.action is not None and not records and query.before is None:
            _check_action(query.action, actions)
        page = records[: query.limit]
        return AuditsOut(
            [_to_out(record) for record in page], page[-1].id if len(records) > len(page) else None
        )

    return [Endpoint("GET", "/audit", audit, AuditQuery, returns=AuditsOut, errors=(400, 403), tag="audit")]


def _check_action(action: str, actions: Collection[str]) -> None:
    """Raises SpecError unless `action` is one of the actions, or the noun of one."""
    nouns = sorted({name.partition(".")[0] for name in actions})
    if action in actions or action in nouns:
        return
    noun = action.partition(".")[0]
    known = sorted(name for name in actions if name.startswith(f"{noun}.")) if noun in nouns else nouns
    suggestion = closest_name(action, [*known, *actions])
    hints = [f"did you mean `{suggestion}`?"] if suggestion else []
    raise SpecError(
        f"there is no action `{escape(action[:80])}`",
        hints=(*hints, f"{'actions' if noun in nouns else 'nouns'}: {', '.join(known)}"),
    )


def _to_out(record: AuditRecord) -> AuditOut:
    return AuditOut(
        record.id,
        record.at,
        record.user,
        record.action,
        record.target,
        record.target_id,
        record.outcome,
        record.origin,
        record.token,
        record.detail,
    )

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
    """detail: what was asked for, without secrets. token: the id of the user's token.
    origin: an address, or `uid N` of a user of the machine."""

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
    """actions: all that the other endpoints are called in the log."""

    async def audit(ask: ApiRequest[AuditQuery, Empty]) -> AuditsOut:
        """List changes and refused changes with their users, newest first, including those of deleted
        objects.

        The owner of the server sees all records, other users see their own changes. 400 for an unknown
        action.
        """
        query, user = ask.query, ask.caller.require_user()
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
        found = await services.audit.list(where)
        # records of an older server may have other actions
        if query.action is not None and not found and query.before is None:
            _check_action(query.action, actions)
        page = found[: query.limit]
        return AuditsOut([_to_out(one) for one in page], page[-1].id if len(found) > len(page) else None)

    return [Endpoint("GET", "/audit", audit, AuditQuery, returns=AuditsOut, errors=(400, 403), tag="audit")]


def _check_action(action: str, actions: Collection[str]) -> None:
    """Raises SpecError for what is neither one of them nor the noun of some."""
    nouns = sorted({one.partition(".")[0] for one in actions})
    if action in actions or action in nouns:
        return
    noun = action.partition(".")[0]
    known = sorted(one for one in actions if one.startswith(f"{noun}.")) if noun in nouns else nouns
    near = closest_name(action, [*known, *actions])
    hints = [f"did you mean `{near}`?"] if near else []
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

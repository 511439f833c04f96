"""The inbox of a user: alerts and ends of the user's runs, with a mark of what is read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import Name, RequestModel, Time, full_match
from hopyard.domain.ids import RunId
from hopyard.domain.inbox import MAX_UNREAD, InboxEntry, InboxPosition
from hopyard.domain.notification import AlertLevel
from hopyard.domain.run import Run, RunPhase
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services

_MAX_ENTRIES = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR = full_match(r"[0-9]{1,16}/[A-Za-z0-9-]{6,64}/(?:end|alert-[0-9a-f]{24})")


class InboxQuery(RequestModel):
    limit: Annotated[int, Meta(ge=1, le=_MAX_ENTRIES)] = 50
    before: (
        Annotated[str, Meta(pattern=_CURSOR, max_length=128, description="`next` of the previous page")]
        | None
    ) = None
    user: Annotated[Name, Meta(description="of the runs; default: the caller")] | None = None


class InboxEntryOut(Struct, frozen=True):
    """at: when the alert arrived, or the run ended. phase: of the run by now. level: `error` for the end of a
    failed run, else `info` for an end. title, text: of the alert, or why the run failed. unread: by the
    user."""

    id: str
    kind: Literal["alert", "end"]
    at: datetime
    run: str
    name: str
    label: str
    phase: RunPhase
    level: AlertLevel
    title: str
    text: str
    unread: bool


class InboxOut(Struct, frozen=True):
    """Newest first. unread: how many in all are unread, counted up to 100. read_at: until when the user has
    read. next: `before` of the next page; null at the end."""

    entries: list[InboxEntryOut]
    unread: int
    read_at: datetime | None
    next: str | None


class InboxMarkIn(RequestModel):
    """until: the `at` of the newest entry that was read."""

    until: Time


class InboxMarkOut(Struct, frozen=True):
    read_at: datetime


def inbox_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def read(request: ApiRequest[InboxQuery, Empty]) -> InboxOut:
        """List the alerts of a user's runs and the ends of these runs, newest first. Ends of trials are not
        listed. Entries of deleted runs are removed."""
        query = request.query
        user = query.user or request.caller.require_user()
        before = None if query.before is None else _parse_cursor(query.before)
        read_at = await services.notifications.inbox_read_until(user)
        found = await services.notifications.list_inbox(user, limit=query.limit + 1, before=before)
        unread = await services.notifications.list_inbox(user, limit=MAX_UNREAD, after=read_at)
        page = found[: query.limit]
        ids = frozenset(entry.position.run for entry in page)
        runs = {
            run.id: run
            for run in (
                await services.runs.list(RunFilter(ids=ids, limit=len(ids), brief=True)) if ids else ()
            )
        }
        entries = [
            _to_out(entry, runs[entry.position.run], read_at)
            for entry in page
            if entry.position.run in runs  # deleted meanwhile
        ]
        next_page = _cursor(page[-1].position) if len(found) > len(page) else None
        return InboxOut(entries, len(unread), read_at, next_page)

    async def mark_read(request: ApiRequest[Empty, InboxMarkIn]) -> InboxMarkOut:
        """Mark the entries of the caller's inbox until a time as read. An earlier mark stays if it is later,
        and no mark is in the future."""
        until = min(request.body.until.astimezone(UTC), services.now())
        user = request.caller.require_user()
        return InboxMarkOut(await services.notifications.mark_inbox_read(user, until=until))

    return [
        Endpoint("GET", "/inbox", read, InboxQuery, returns=InboxOut, errors=(400,)),
        Endpoint(
            "PUT",
            "/inbox/read",
            mark_read,
            body=InboxMarkIn,
            returns=InboxMarkOut,
            errors=(400,),
            unaudited_reason="how far an inbox is read is a mark that only its own user sees",
        ),
    ]


def _cursor(position: InboxPosition) -> str:
    us = round((position.at - _EPOCH).total_seconds() * 1_000_000)
    return f"{us}/{position.run}/{position.key}"


def _parse_cursor(text: str) -> InboxPosition:
    us, run, key = text.split("/")
    return InboxPosition(
        datetime.fromtimestamp(int(us) // 1_000_000, UTC).replace(microsecond=int(us) % 1_000_000),
        RunId(run),
        key,
    )


def _to_out(entry: InboxEntry, run: Run, read_at: datetime | None) -> InboxEntryOut:
    alert, is_failed = entry.alert, run.phase is RunPhase.FAILED
    text = alert.text if alert is not None else run.exit.reason if is_failed and run.exit else ""
    level = alert.level if alert is not None else AlertLevel.ERROR if is_failed else AlertLevel.INFO
    return InboxEntryOut(
        id=_cursor(entry.position),
        kind="end" if alert is None else "alert",
        at=entry.position.at,
        run=run.id,
        name=str(run.name),
        label=run.spec.label or "",
        phase=run.phase,
        level=level,
        title="" if alert is None else alert.title,
        text=text,
        unread=read_at is None or entry.position.at > read_at,
    )

"""Reservations: granted or refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from hopyard.config.reservations import check_reservation
from hopyard.domain.access import Scope
from hopyard.domain.cluster import Snapshot
from hopyard.domain.ids import ReservationId
from hopyard.domain.queue import QueueTree
from hopyard.domain.quota import admins
from hopyard.domain.reservation import Reservation
from hopyard.errors import Conflict, Forbidden
from hopyard.scheduler.timeline.grant import Refused, grant
from hopyard.server.answers import answer
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.known import unknown_users
from hopyard.server.names import with_names
from hopyard.server.pages import PageQuery, page_of
from hopyard.server.parts import Parts
from hopyard.server.reservation_wire import (
    GrantedOut,
    ReservationIn,
    ReservationOut,
    ReservationsOut,
    ReserveQuery,
    reservation_out,
)

_TRIES = 3  # when others change what is reserved at the same moment


def reservation_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def list_all(ask: Ask[PageQuery, Nothing]) -> ReservationsOut:
        """List the reservations by start, those that are over too."""
        now = parts.now()
        page, after = page_of(
            await parts.reservations.list(),
            ask.query,
            key=lambda one: f"{one.start_at.isoformat(timespec='microseconds')} {one.name}",
        )
        return ReservationsOut([reservation_out(one, now) for one in page], after)

    async def get(ask: Ask[Nothing, Nothing]) -> ReservationOut:
        """Get a reservation."""
        return reservation_out(await parts.reservations.get(ask.path["reservation"]), parts.now())

    async def create(ask: Ask[ReserveQuery, ReservationIn]) -> GrantedOut | Response:
        """Reserve nodes or resources for users or a queue.

        It is granted at once, with its nodes, or refused. 400 says what in it cannot be meant. 403 unless the
        caller is the server's owner, or an administrator of the queue that it is for. 409 names what is in
        the way: another reservation, or a run that may not be preempted and is certain to be there. A dry run
        is answered alike, with 200 instead of 201.
        """
        if ask.query.dry_run:
            granted, warnings = await _grant(ask, await parts.controller.snapshot())
            return answer(GrantedOut(reservation_out(granted, parts.now()), warnings, applied=False), 200)
        for tries_left in reversed(range(_TRIES)):
            try:
                granted, warnings = await _create(ask)
                break
            except _Changed:
                if not tries_left:
                    raise
        parts.controller.wake()
        return GrantedOut(reservation_out(granted, parts.now()), warnings, applied=True)

    async def _create(ask: Ask[ReserveQuery, ReservationIn]) -> tuple[Reservation, Sequence[str]]:
        snapshot = await parts.controller.snapshot()
        granted, warnings = await _grant(ask, snapshot)
        try:
            await parts.reservations.create(granted, based_on=snapshot.version)
        except Conflict as conflict:
            raise _Changed(conflict.message, hints=conflict.hints) from conflict
        return granted, warnings

    async def _grant(
        ask: Ask[ReserveQuery, ReservationIn], snapshot: Snapshot
    ) -> tuple[Reservation, Sequence[str]]:
        """With its nodes, and what it costs others. Raises SpecError, Forbidden or Conflict where it is
        refused."""
        user, now = ask.caller.require_user(), snapshot.now
        wanted = ask.body.reservation(ReservationId(ask.body.name), by=user, at=now)
        _check_may(snapshot.queues, wanted, user=user, owner=parts.queues.owner)
        check_reservation(wanted, nodes=list(snapshot.nodes.values()), queues=snapshot.queues, now=now)
        if any(one.name == wanted.name for one in await parts.reservations.list()):
            raise Conflict(f"there is a reservation `{wanted.name}`", hints=("choose another name",))
        found = await asyncio.to_thread(grant, wanted, snapshot)
        if isinstance(found, Refused):
            (detail,) = await with_names(parts.runs, [found.detail])
            raise Conflict(f"it cannot be honoured: {detail}", hints=found.hints)
        return found.reservation, [
            *await with_names(parts.runs, found.warnings),
            *await unknown_users(parts.access, wanted.users),
        ]

    async def delete(ask: Ask[Nothing, Nothing]) -> ReservationOut:
        """Give a reservation up. 403 unless the caller is the server's owner, administers its queue, or made
        it."""
        user = ask.caller.require_user()
        found = await parts.reservations.get(ask.path["reservation"])
        if user != found.created_by:
            _check_may(
                await parts.queues.tree(),
                found,
                user=user,
                owner=parts.queues.owner,
                doing="give up what is reserved",
            )
        gone = await parts.reservations.delete(found.name)
        parts.controller.wake()
        return reservation_out(gone, parts.now())

    return [
        Endpoint("GET", "/reservations", list_all, PageQuery, returns=ReservationsOut),
        Endpoint(
            "POST",
            "/reservations",
            create,
            ReserveQuery,
            ReservationIn,
            returns=GrantedOut,
            status=201,
            also=(200,),
            errors=(400, 403, 404, 409),
            scope=Scope.ADMIN,
        ),
        Endpoint("GET", "/reservations/{reservation}", get, returns=ReservationOut, errors=(404,)),
        Endpoint(
            "DELETE",
            "/reservations/{reservation}",
            delete,
            returns=ReservationOut,
            errors=(403, 404),
            scope=Scope.ADMIN,
        ),
    ]


class _Changed(Conflict):
    """Reservations or queues were changed since the snapshot on which it was granted."""


def _check_may(tree: QueueTree, one: Reservation, *, user: str, owner: str, doing: str = "reserve") -> None:
    """Raises Forbidden unless the user may reserve, or give up, such a reservation."""
    of_queue = one.queue is not None and not one.users
    may = admins(tree, one.queue) if one.queue is not None and of_queue else ()
    if user != owner and user not in may:
        who = ", ".join(dict.fromkeys([*may, owner]))
        raise Forbidden(
            f"`{user}` may not {doing} for {f'queue {one.queue}' if of_queue else 'users'}; those who "
            f"may: {who}",
            hints=("administrators of a queue reserve for that queue, without --user",),
        )

"""Reservations: granted or refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from hopyard.config.reservation_times import check_reservation
from hopyard.config.schemas.reservations import ReservationIn
from hopyard.domain.access import Scope
from hopyard.domain.cluster import Snapshot
from hopyard.domain.effective_limits import effective_admins
from hopyard.domain.ids import ReservationId
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.errors import Conflict, Forbidden
from hopyard.scheduler.timeline.reservation_admission import Rejected, admit_reservation
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import PageQuery, paginate
from hopyard.server.responses import json_response
from hopyard.server.run_names import replace_run_ids
from hopyard.server.schemas.reservations import (
    GrantedOut,
    ReservationOut,
    ReservationsOut,
    ReserveQuery,
    to_reservation_out,
)
from hopyard.server.services import Services
from hopyard.server.unknown_users import unknown_users

_MAX_ATTEMPTS = 3  # when others change what is reserved at the same moment


def reservation_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_all(ask: ApiRequest[PageQuery, Empty]) -> ReservationsOut:
        """List the reservations by start, including past reservations."""
        now = services.now()
        page, after = paginate(
            await services.reservations.list(),
            ask.query,
            key=lambda one: f"{one.start_at.isoformat(timespec='microseconds')} {one.name}",
        )
        return ReservationsOut([to_reservation_out(one, now) for one in page], after)

    async def get(ask: ApiRequest[Empty, Empty]) -> ReservationOut:
        """Get a reservation."""
        return to_reservation_out(await services.reservations.get(ask.path["reservation"]), services.now())

    async def create(ask: ApiRequest[ReserveQuery, ReservationIn]) -> GrantedOut | Response:
        """Reserve nodes or resources for users or a queue.

        The reservation is granted at once, with its nodes, or refused. 400 names the invalid field. 403
        unless the caller owns the server or administers the queue of the reservation. 409 names the obstacle:
        another reservation, or a live run that cannot be preempted. A dry run gets the same response, with
        200 instead of 201.
        """
        if ask.query.dry_run:
            granted, warnings = await _grant(ask, await services.controller.snapshot())
            return json_response(
                GrantedOut(to_reservation_out(granted, services.now()), warnings, applied=False), 200
            )
        for tries_left in reversed(range(_MAX_ATTEMPTS)):
            try:
                granted, warnings = await _create(ask)
                break
            except _SnapshotOutdated:
                if not tries_left:
                    raise
        services.controller.request_cycle()
        return GrantedOut(to_reservation_out(granted, services.now()), warnings, applied=True)

    async def _create(ask: ApiRequest[ReserveQuery, ReservationIn]) -> tuple[Reservation, Sequence[str]]:
        snapshot = await services.controller.snapshot()
        granted, warnings = await _grant(ask, snapshot)
        try:
            await services.reservations.create(granted, based_on=snapshot.version)
        except Conflict as conflict:
            raise _SnapshotOutdated(conflict.message, hints=conflict.hints) from conflict
        return granted, warnings

    async def _grant(
        ask: ApiRequest[ReserveQuery, ReservationIn], snapshot: Snapshot
    ) -> tuple[Reservation, Sequence[str]]:
        """With its nodes, and what it costs others. Raises SpecError, Forbidden or Conflict where it is
        refused."""
        user, now = ask.caller.require_user(), snapshot.now
        wanted = ask.body.to_reservation(ReservationId(ask.body.name), by=user, at=now)
        _check_may_reserve(snapshot.queues, wanted, user=user, owner=services.queue_cache.owner)
        check_reservation(wanted, nodes=list(snapshot.nodes.values()), queues=snapshot.queues, now=now)
        if any(one.name == wanted.name for one in await services.reservations.list()):
            raise Conflict(f"there is a reservation `{wanted.name}`", hints=("choose another name",))
        found = await asyncio.to_thread(admit_reservation, wanted, snapshot)
        if isinstance(found, Rejected):
            (detail,) = await replace_run_ids(services.runs, [found.detail])
            raise Conflict(f"it cannot be granted: {detail}", hints=found.hints)
        return found.reservation, [
            *await replace_run_ids(services.runs, found.warnings),
            *await unknown_users(services.access, wanted.users),
        ]

    async def delete(ask: ApiRequest[Empty, Empty]) -> ReservationOut:
        """Give a reservation up. 403 unless the caller is the server's owner, administers its queue, or made
        it."""
        user = ask.caller.require_user()
        found = await services.reservations.get(ask.path["reservation"])
        if user != found.created_by:
            _check_may_reserve(
                await services.queue_cache.tree(),
                found,
                user=user,
                owner=services.queue_cache.owner,
                action="cancel reservations",
            )
        gone = await services.reservations.delete(found.name)
        services.controller.request_cycle()
        return to_reservation_out(gone, services.now())

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
            other_statuses=(200,),
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


class _SnapshotOutdated(Conflict):
    """Reservations or queues were changed since the snapshot on which it was granted."""


def _check_may_reserve(
    tree: QueueTree, reservation: Reservation, *, user: str, owner: str, action: str = "reserve"
) -> None:
    """Raises Forbidden unless the user may reserve, or give up, such a reservation."""
    of_queue = reservation.queue is not None and not reservation.users
    may = effective_admins(tree, reservation.queue) if reservation.queue is not None and of_queue else ()
    if user != owner and user not in may:
        who = ", ".join(dict.fromkeys([*may, owner]))
        raise Forbidden(
            f"`{user}` may not {action} for {f'queue {reservation.queue}' if of_queue else 'users'}; "
            f"allowed users: {who}",
            hints=("remove --user: administrators of a queue reserve for that queue",),
        )

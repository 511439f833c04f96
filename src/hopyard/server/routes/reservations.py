"""Reservations. They are granted or refused at once."""

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
from hopyard.scheduler.explain.reservation_messages import (
    admission_warning_message,
    rejection_hints,
    rejection_message,
    runs_in_rejection,
    runs_in_warnings,
)
from hopyard.scheduler.timeline.reservation_admission import Rejected, admit_reservation
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import PageQuery, paginate
from hopyard.server.responses import json_response
from hopyard.server.run_names import run_names
from hopyard.server.schemas.reservations import (
    GrantedOut,
    ReservationOut,
    ReservationsOut,
    ReserveQuery,
    to_reservation_out,
)
from hopyard.server.services import Services
from hopyard.server.unknown_users import unknown_users

_MAX_ATTEMPTS = 3  # when other requests change the reservations at the same time


def reservation_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_all(request: ApiRequest[PageQuery, Empty]) -> ReservationsOut:
        """List the reservations by start, including past reservations."""
        now = services.now()
        page, after = paginate(
            await services.reservations.list(),
            request.query,
            key=lambda reservation: (
                f"{reservation.start_at.isoformat(timespec='microseconds')} {reservation.name}"
            ),
        )
        return ReservationsOut([to_reservation_out(reservation, now) for reservation in page], after)

    async def get(request: ApiRequest[Empty, Empty]) -> ReservationOut:
        """Get a reservation."""
        return to_reservation_out(
            await services.reservations.get(request.path["reservation"]), services.now()
        )

    async def create(request: ApiRequest[ReserveQuery, ReservationIn]) -> GrantedOut | Response:
        """Reserve nodes or resources for users or a queue.

        The reservation is granted at once, with its nodes, or refused. 400 names the invalid field. 403
        unless the caller owns the server or administers the queue of the reservation. 409 names the obstacle:
        another reservation, or a live run that cannot be preempted. A dry run gets the same response, with
        200 instead of 201.
        """
        if request.query.dry_run:
            granted, warnings = await _grant(request, await services.controller.snapshot())
            return json_response(
                GrantedOut(to_reservation_out(granted, services.now()), warnings, applied=False), 200
            )
        for remaining_attempts in reversed(range(_MAX_ATTEMPTS)):
            try:
                granted, warnings = await _create(request)
                break
            except _SnapshotOutdated:
                if not remaining_attempts:
                    raise
        services.controller.request_cycle()
        return GrantedOut(to_reservation_out(granted, services.now()), warnings, applied=True)

    async def _create(request: ApiRequest[ReserveQuery, ReservationIn]) -> tuple[Reservation, Sequence[str]]:
        snapshot = await services.controller.snapshot()
        granted, warnings = await _grant(request, snapshot)
        try:
            await services.reservations.create(granted, based_on=snapshot.version)
        except Conflict as error:
            raise _SnapshotOutdated(error.message, hints=error.hints) from error
        return granted, warnings

    async def _grant(
        request: ApiRequest[ReserveQuery, ReservationIn], snapshot: Snapshot
    ) -> tuple[Reservation, Sequence[str]]:
        """Returns the reservation with its nodes, and warnings about its effects. Raises SpecError, Forbidden
        or Conflict if it is refused."""
        user, now = request.caller.require_user(), snapshot.now
        reservation = request.body.to_reservation(ReservationId(request.body.name), by=user, at=now)
        _check_may_reserve(snapshot.queues, reservation, user=user, owner=services.queue_cache.owner)
        check_reservation(reservation, nodes=list(snapshot.nodes.values()), queues=snapshot.queues, now=now)
        if any(existing.name == reservation.name for existing in await services.reservations.list()):
            raise Conflict(f"reservation `{reservation.name}` already exists", hints=("choose another name",))
        admission = await asyncio.to_thread(admit_reservation, reservation, snapshot)
        if isinstance(admission, Rejected):
            names = await run_names(services.runs, runs_in_rejection(admission.cause))
            detail = rejection_message(admission.cause, lambda run: names.get(run, run))
            raise Conflict(f"it cannot be granted: {detail}", hints=rejection_hints(admission.cause))
        names = await run_names(services.runs, runs_in_warnings(admission.warnings))
        return admission.reservation, [
            *(
                admission_warning_message(warning, lambda run: names.get(run, run))
                for warning in admission.warnings
            ),
            *await unknown_users(services.access, reservation.users),
        ]

    async def delete(request: ApiRequest[Empty, Empty]) -> ReservationOut:
        """Cancel a reservation. 403 unless the caller owns the server, administers the queue of the
        reservation, or created it."""
        user = request.caller.require_user()
        reservation = await services.reservations.get(request.path["reservation"])
        if user != reservation.created_by:
            _check_may_reserve(
                await services.queue_cache.tree(),
                reservation,
                user=user,
                owner=services.queue_cache.owner,
                action="cancel reservations",
            )
        deleted = await services.reservations.delete(reservation.name)
        services.controller.request_cycle()
        return to_reservation_out(deleted, services.now())

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
    """Reservations or queues were changed after the snapshot on which the reservation was granted."""


def _check_may_reserve(
    tree: QueueTree, reservation: Reservation, *, user: str, owner: str, action: str = "reserve"
) -> None:
    """Raises Forbidden unless the user may create, or cancel, such a reservation."""
    of_queue = reservation.queue is not None and not reservation.users
    admins = effective_admins(tree, reservation.queue) if reservation.queue is not None and of_queue else ()
    if user != owner and user not in admins:
        allowed_users = ", ".join(dict.fromkeys([*admins, owner]))
        raise Forbidden(
            f"`{user}` may not {action} for {f'queue {reservation.queue}' if of_queue else 'users'}; "
            f"allowed users: {allowed_users}",
            hints=("remove --user: administrators of a queue reserve for that queue",),
        )

"""Schemas of reservations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import RequestModel
from hopyard.domain.cluster import Snapshot
from hopyard.domain.gang import NodeSelector
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.scheduler.timeline.reservation_windows import occurrences

_MAX_LOOKAHEAD = timedelta(days=3660)


class ReservationOut(Struct, frozen=True, kw_only=True):
    """nodes, pieces: `pieces[i]` times `resources` on `nodes[i]`; whole nodes if `resources` is null.
    next_start_at, next_end_at: the active or next occurrence; null after the last one."""

    name: str
    start_at: datetime
    end_at: datetime
    users: Sequence[str]
    queue: str | None
    nodes: Sequence[str]
    pieces: Sequence[int]
    resources: Resources | None
    where: NodeSelector
    every_s: float
    until: datetime | None
    zone: str
    created_by: str
    created_at: datetime | None
    active: bool
    next_start_at: datetime | None
    next_end_at: datetime | None


class ReservationsOut(Struct, frozen=True):
    """By start. next: `after` of the next page; null at the end."""

    reservations: Sequence[ReservationOut]
    next: str | None


class ReserveQuery(RequestModel):
    dry_run: Annotated[int, Meta(ge=0, le=1, description="1: only checks whether it would be granted")] = 0


class GrantedOut(Struct, frozen=True):
    """warnings: effects on runs and other users. applied: false for a dry run, which reserves nothing."""

    reservation: ReservationOut
    warnings: Sequence[str]
    applied: bool


def upcoming_reservations(snapshot: Snapshot, selects: Callable[[Reservation], bool]) -> list[ReservationOut]:
    """Returns the selected reservations that are active or have future occurrences, the next first."""
    reservations = [
        to_reservation_out(reservation, snapshot.now)
        for reservation in snapshot.reservations
        if selects(reservation)
    ]
    return sorted(
        (reservation for reservation in reservations if reservation.next_start_at is not None),
        key=lambda reservation: (reservation.next_start_at, reservation.name),
    )


def to_reservation_out(reservation: Reservation, now: datetime) -> ReservationOut:
    begin, end = next(occurrences(reservation, now, now + _MAX_LOOKAHEAD), (None, None))
    return ReservationOut(
        name=reservation.name,
        start_at=reservation.start_at,
        end_at=reservation.end_at,
        users=reservation.users,
        queue=reservation.queue,
        nodes=reservation.nodes,
        pieces=reservation.pieces,
        resources=reservation.resources,
        where=reservation.where,
        every_s=reservation.every_s,
        until=reservation.until,
        zone=reservation.zone,
        created_by=reservation.created_by,
        created_at=reservation.created_at,
        active=begin is not None and begin <= now,
        next_start_at=begin,
        next_end_at=end,
    )

"""The shape of a reservation."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from hopyard.config.limits import MAX_PIECES, MAX_SECONDS
from hopyard.config.schemas.fields import Name, RequestModel, Time
from hopyard.config.schemas.runs import ResourcesIn, WhereIn
from hopyard.config.schemas.validation_errors import InvalidValue, find_problem
from hopyard.domain.gang import NodeSelector
from hopyard.domain.ids import NodeId, PoolName, QueueName, ReservationId
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources


class ReservationIn(RequestModel):
    """users, queue: who may use it. Whole `nodes` by name, or `count` times `resources`, each on one node
    that `where` allows. every_s: it happens again after so long, until `until`; 0: once. zone: a time zone
    ("Europe/Berlin") on whose clocks it keeps its time of day where it repeats after whole days."""

    name: Name
    start_at: Time
    end_at: Time
    users: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    queue: Name | None = None
    nodes: Annotated[tuple[Name, ...], Meta(max_length=4096)] = ()
    count: Annotated[int, Meta(ge=1, le=MAX_PIECES)] = 1
    resources: ResourcesIn | None = None
    where: WhereIn = msgspec.field(default_factory=WhereIn)
    every_s: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] = 0.0
    until: Time | None = None
    zone: Annotated[str, Meta(max_length=64)] = ""

    def to_reservation(self, id: ReservationId, *, by: str, at: datetime) -> Reservation:
        """Returns the reservation as it is requested. `pieces` holds the count alone until its nodes are
        chosen."""
        requested = self.resources
        return Reservation(
            id,
            self.name,
            self.start_at,
            self.end_at,
            self.users,
            QueueName(self.queue) if self.queue is not None else None,
            tuple(map(NodeId, self.nodes)),
            () if requested is None else (self.count,),
            None if requested is None else _to_resources(requested),
            NodeSelector(tuple(map(PoolName, self.where.pools)), tuple(sorted(self.where.labels))),
            self.every_s,
            self.until,
            by,
            at,
            self.zone,
        )


def _to_resources(requested: ResourcesIn) -> Resources:
    fields = msgspec.structs.asdict(requested)
    return Resources(**{**fields, "extras": tuple(sorted(requested.extras))})


def find_reservation_problem(reservation: Reservation) -> InvalidValue | None:
    """Returns the first problem of a reservation from a file, as a request would get it."""
    fields = {name: getattr(reservation, name) for name in ReservationIn.__struct_fields__ if name != "count"}
    fields["where"] = asdict(reservation.where)
    if reservation.resources is not None:
        fields |= {"resources": asdict(reservation.resources), "count": sum(reservation.pieces)}
    return find_problem(fields, ReservationIn)

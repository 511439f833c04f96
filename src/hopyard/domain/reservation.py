"""Capacity held for an owner and a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hopyard.domain.gang import ANY_NODE, NodeSelector
from hopyard.domain.ids import NodeId, QueueName, ReservationId
from hopyard.domain.resources import Resources


@dataclass(frozen=True, slots=True)
class Reservation:
    """From `start_at` until `end_at` (excluded), only the owner's runs use the reserved capacity.

    users, queue: the owner. A run belongs to the owner if its user is listed, or if its queue is `queue` or
    below it.

    The capacity is either whole `nodes` by name, or `count` times `resources` on nodes that `where` allows,
    each on one node. The nodes are chosen when the reservation is granted, and stored in `nodes`, with
    `pieces[i]` of them on `nodes[i]`; `pieces` is () for whole nodes.

    every_s: repeats after this time, until `until` (None: without end); 0 happens once. zone: the name of a
    time zone ("Europe/Berlin"). A reservation that repeats after whole days keeps its time of day there. "":
    it repeats after exactly `every_s`.
    """

    id: ReservationId
    name: str
    start_at: datetime
    end_at: datetime
    users: tuple[str, ...] = ()
    queue: QueueName | None = None
    nodes: tuple[NodeId, ...] = ()
    pieces: tuple[int, ...] = ()
    resources: Resources | None = None
    where: NodeSelector = ANY_NODE
    every_s: float = 0.0
    until: datetime | None = None
    created_by: str = ""
    created_at: datetime | None = None
    zone: str = ""

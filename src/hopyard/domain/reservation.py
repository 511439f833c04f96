"""Capacity held for an owner and a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hopyard.domain.gang import ANY_NODE, NodeSelector
from hopyard.domain.ids import NodeId, QueueName, ReservationId
from hopyard.domain.resources import Resources


@dataclass(frozen=True, slots=True)
class Reservation:
    """From `start_at` until `end_at` (not included) only the owner's runs use what is reserved.

    users, queue: the owner; a run is the owner's when its user is named, or when its queue is `queue` or
    below it. Either whole `nodes` by name, or `count` times `resources` on nodes that `where` allows (each on
    one node; which nodes, is decided when it is granted and kept in `nodes`, `pieces[i]` of them on
    `nodes[i]`; () when whole nodes are meant). every_s: repeats after this long, until `until` (None: for
    ever); 0 happens once. zone: the name of a time zone ("Europe/Berlin") on whose clocks it keeps its time
    of day where it repeats after whole days; "": it repeats after exactly so long.
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

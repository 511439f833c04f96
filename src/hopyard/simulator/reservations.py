"""Reservations of a simulated cluster: they are granted as the server would, and the use of each is
measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hopyard.config.cluster_reservations import ReservationSection
from hopyard.domain.cluster import Node, Snapshot
from hopyard.domain.gang import Placement
from hopyard.domain.ids import NodeId, Version
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.explain.reservation_messages import rejection_message
from hopyard.scheduler.timeline.reservation_admission import Rejected, admit_reservation
from hopyard.scheduler.timeline.reservation_windows import may_use, occurrences

_US = timedelta(microseconds=1)


def admit_reservations(
    requested: Sequence[ReservationSection],
    nodes: Sequence[Node],
    queues: QueueTree,
    begin: datetime,
    existing: Sequence[Reservation] = (),
) -> tuple[Reservation, ...]:
    """Returns `existing` and the requested reservations, in order. Each is granted beside those before it, on
    a cluster that is empty at `begin`. Raises SpecError with the path of a reservation that is invalid or
    cannot be honoured."""
    admitted, begin = list(existing), begin.astimezone(UTC)
    by_id = {node.id: node for node in nodes}
    for section in requested:
        reservation = section.reservation(begin, nodes=nodes, queues=queues)
        if any(reservation.name == other.name for other in existing):
            raise section.error(
                f"there is a reservation `{reservation.name}` already", "give each a name of its own"
            )
        decision = admit_reservation(
            reservation, Snapshot(Version(0), begin, by_id, queues=queues, reservations=tuple(admitted))
        )
        if isinstance(decision, Rejected):
            raise section.error(
                rejection_message(decision.cause), "choose another time, other nodes or fewer pieces"
            )
        admitted.append(decision.reservation)
    return tuple(admitted)


@dataclass(frozen=True, slots=True)
class ReservedShare:
    """The use of one reservation during the simulation. times: how often it began. reserved: GPU hours (core
    hours if it holds no GPU). used: the part that the runs of its owner used. taken: the part that other runs
    used, under a policy that ignores reservations."""

    name: str
    nodes: tuple[str, ...]
    times: int
    reserved: float
    used: float
    taken: float
    by_gpu: bool

    @property
    def ratio(self) -> float:
        return self.used / self.reserved if self.reserved else 0.0


class ReservationMeter:
    """Measures one reservation over time: what it holds, and what its owner and others use of it. The unit is
    thousandths of a GPU (of a core, if it holds no GPU) times microseconds. occurrences: how often it has
    begun."""

    def __init__(self, reservation: Reservation, nodes: Sequence[Node], queues: QueueTree) -> None:
        self.reservation, self._queues = reservation, queues
        reserved_nodes = [node for node in nodes if node.id in set(reservation.nodes)]
        resources = reservation.resources
        self.by_gpu = (
            any(node.gpus for node in reserved_nodes)
            if resources is None
            else bool(resources.gpus or resources.is_gpu_share)
        )
        self._capacity = {
            node.id: len(node.gpus) * WHOLE_GPU if self.by_gpu else node.cpu_milli for node in reserved_nodes
        }
        self._reserved_on = dict(self._capacity)
        if resources is not None:
            pieces = dict(zip(reservation.nodes, reservation.pieces, strict=True))
            piece_size = {
                node.id: _piece_size(reservation, node, by_gpu=self.by_gpu) for node in reserved_nodes
            }
            self._reserved_on = {name: pieces[name] * piece_size[name] for name in piece_size}
        self._owner_use: Counter[NodeId] = Counter()
        self._other_use: Counter[NodeId] = Counter()
        self.reserved_time = self.used_time = self.taken_time = self.occurrences = 0

    def count(self, placement: Placement, sign: int) -> None:
        """Records that a gang was placed (1) or released (-1)."""
        counts = (
            self._owner_use if may_use(placement.gang, self.reservation, self._queues) else self._other_use
        )
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
            if assignment.node in self._reserved_on:
                amount = (
                    assignment.gpu_milli * len(assignment.gpus) if self.by_gpu else role.resources.cpu_milli
                )
                counts[assignment.node] += sign * amount

    def advance(self, since: datetime, now: datetime) -> None:
        """Adds the time from `since` to `now`, in which nothing changed on its nodes."""
        held = used = taken = 0
        for start, end in occurrences(self.reservation, since, now):
            us = (min(end, now) - max(start, since)) // _US
            if not held:
                held = sum(self._reserved_on.values())
                used = sum(
                    min(self._owner_use[name], reserved) for name, reserved in self._reserved_on.items()
                )
                taken = sum(
                    max(self._other_use[name] - (self._capacity[name] - reserved), 0)
                    for name, reserved in self._reserved_on.items()
                )
            self.occurrences += since <= start < now
            self.reserved_time += held * us
            self.used_time += used * us
            self.taken_time += taken * us

    def to_share(self) -> ReservedShare:
        held, used, taken = (
            amount / WHOLE_GPU / 3.6e9 for amount in (self.reserved_time, self.used_time, self.taken_time)
        )
        return ReservedShare(
            self.reservation.name, self.reservation.nodes, self.occurrences, held, used, taken, self.by_gpu
        )


def _piece_size(reservation: Reservation, node: Node, *, by_gpu: bool) -> int:
    """Returns what one piece uses of the node."""
    resources = reservation.resources
    assert resources is not None
    if not by_gpu:
        return resources.cpu_milli
    if resources.is_gpu_share:
        models = {model.casefold() for model in resources.gpu_models}
        return min(
            (
                resources.gpu_milli_on(gpu)
                for gpu in node.gpus
                if not models or gpu.model.casefold() in models
            ),
            default=0,
        )
    return resources.gpus * WHOLE_GPU

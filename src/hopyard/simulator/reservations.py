"""Reservations of a simulated cluster: granted as the server would, and how much of each was used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hopyard.config.reserved import Asked
from hopyard.domain.cluster import Node, Snapshot
from hopyard.domain.gang import Placement
from hopyard.domain.ids import NodeId, Version
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.timeline.booked import occurrences, owns
from hopyard.scheduler.timeline.grant import Refused, grant

_US = timedelta(microseconds=1)


def granted(
    asked: Sequence[Asked],
    nodes: Sequence[Node],
    queues: QueueTree,
    begin: datetime,
    held: Sequence[Reservation] = (),
) -> tuple[Reservation, ...]:
    """`held`, and after them those asked for, in their order and each beside those before it, on a cluster
    that is empty at `begin`. Raises SpecError with the path of one that makes no sense or cannot be
    honoured."""
    found, begin = list(held), begin.astimezone(UTC)
    by_id = {node.id: node for node in nodes}
    for one in asked:
        wanted = one.reservation(begin, nodes=nodes, queues=queues)
        if any(wanted.name == other.name for other in held):
            raise one.refuse(f"there is a reservation `{wanted.name}` already", "give each a name of its own")
        answer = grant(wanted, Snapshot(Version(0), begin, by_id, queues=queues, reservations=tuple(found)))
        if isinstance(answer, Refused):
            raise one.refuse(answer.detail, "choose another time, other nodes or fewer pieces")
        found.append(answer.reservation)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ReservedShare:
    """Of one reservation, as long as the simulation went. times: how often it began. reserved: GPU hours
    (core hours where it holds no GPU); used: of these by its owner's runs; taken: by others, from a policy
    that knows of no reservations."""

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


class Kept:
    """One reservation as time passes: what it holds and what its owner and others use of it, in thousandths
    of a GPU (of a core, where it holds no GPU) times microseconds. times: how often it has begun."""

    def __init__(self, reservation: Reservation, nodes: Sequence[Node], queues: QueueTree) -> None:
        self.reservation, self._queues = reservation, queues
        on = [node for node in nodes if node.id in set(reservation.nodes)]
        asked = reservation.resources
        self.by_gpu = any(node.gpus for node in on) if asked is None else bool(asked.gpus or asked.shares_gpu)
        self._all = {node.id: len(node.gpus) * WHOLE_GPU if self.by_gpu else node.cpu_milli for node in on}
        self._holds = dict(self._all)
        if asked is not None:
            pieces = dict(zip(reservation.nodes, reservation.pieces, strict=True))
            each = {node.id: _of_one(reservation, node, by_gpu=self.by_gpu) for node in on}
            self._holds = {name: pieces[name] * each[name] for name in each}
        self._own: Counter[NodeId] = Counter()
        self._others: Counter[NodeId] = Counter()
        self.held = self.used = self.taken = self.times = 0

    def count(self, placement: Placement, sign: int) -> None:
        """A gang was placed (1) or is gone (-1)."""
        counts = self._own if owns(placement.gang, self.reservation, self._queues) else self._others
        for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
            if assignment.node in self._holds:
                amount = (
                    assignment.gpu_milli * len(assignment.gpus) if self.by_gpu else role.resources.cpu_milli
                )
                counts[assignment.node] += sign * amount

    def pass_by(self, since: datetime, now: datetime) -> None:
        """Nothing changed on its nodes in between."""
        held = used = taken = 0
        for start, end in occurrences(self.reservation, since, now):
            us = (min(end, now) - max(start, since)) // _US
            if not held:
                held = sum(self._holds.values())
                used = sum(min(self._own[name], most) for name, most in self._holds.items())
                taken = sum(
                    max(self._others[name] - (self._all[name] - most), 0)
                    for name, most in self._holds.items()
                )
            self.times += since <= start < now
            self.held += held * us
            self.used += used * us
            self.taken += taken * us

    def share(self) -> ReservedShare:
        held, used, taken = (amount / WHOLE_GPU / 3.6e9 for amount in (self.held, self.used, self.taken))
        return ReservedShare(
            self.reservation.name, self.reservation.nodes, self.times, held, used, taken, self.by_gpu
        )


def _of_one(reservation: Reservation, node: Node, *, by_gpu: bool) -> int:
    """What one piece holds of the node."""
    asked = reservation.resources
    assert asked is not None
    if not by_gpu:
        return asked.cpu_milli
    if asked.shares_gpu:
        models = {model.casefold() for model in asked.gpu_models}
        return min(
            (asked.milli_of(gpu) for gpu in node.gpus if not models or gpu.model.casefold() in models),
            default=0,
        )
    return asked.gpus * WHOLE_GPU

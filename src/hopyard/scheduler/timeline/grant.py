"""Whether a reservation can be granted, and on which nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from hopyard.domain.cluster import Node, Promise, Running, Snapshot
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.fit import never_fits
from hopyard.scheduler.placement.ground import matches
from hopyard.scheduler.placement.lacks import describe
from hopyard.scheduler.predict import expect, remaining
from hopyard.scheduler.timeline.booked import occurrences, owns
from hopyard.scheduler.timeline.future import Future
from hopyard.scheduler.timeline.held import kept_on
from hopyard.scheduler.timeline.overlap import meetings

NAMED = 3
WORSE = 1000  # a run that cannot be made to leave weighs as much as so many that can


@dataclass(frozen=True, slots=True)
class Granted:
    """The reservation as it holds from now on, with its nodes and pieces.
    warnings: sentences about what it costs others."""

    reservation: Reservation
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be honoured. conflicts: what is in the way, as "reservation:NAME", "run:ID", "node:ID"."""

    detail: str
    conflicts: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def grant(wanted: Reservation, snapshot: Snapshot) -> Granted | Refused:
    """Decide it at once against what is reserved already and against runs that are certain to be there and
    may not be preempted; promises and runs that may be preempted give way to it, and are named as warnings.

    wanted.nodes: the nodes, whole; or () with `resources`, `where` and in `pieces` the count alone, (count,):
    the nodes that stand least in anybody's way are chosen, those with more room first. The nodes must exist
    (see `config.reservations`).
    """
    ground = _Ground(wanted, snapshot)
    if wanted.resources is None:
        for name in wanted.nodes:
            blocked = ground.blocked(snapshot.nodes[name], 1)
            if blocked is not None:
                return blocked
        return Granted(wanted, ground.warnings(wanted))
    return _choose(wanted, ground)


def _choose(wanted: Reservation, ground: _Ground) -> Granted | Refused:
    assert wanted.resources is not None
    able = [
        node
        for node in sorted(ground.nodes.values(), key=lambda node: node.id)
        if matches(wanted.where, node)
    ]
    whole = {node.id: ground.whole_room(node) for node in able}
    missing, chosen, blocks = sum(wanted.pieces), [], []
    if sum(whole.values()) < missing:
        one = replace(_pieces(wanted.resources, 1, wanted.start_at).roles[0], where=wanted.where)
        too_large = never_fits(Gang(GangId("piece"), (one,), wanted.start_at), ground.nodes.values())
        held = (
            f"all nodes it may use together hold {sum(whole.values())} of the {missing} pieces of "
            f"{describe(wanted.resources)} each"
        )
        return (
            Refused(f"one piece {too_large}")
            if too_large
            else Refused(held, hints=("ask for fewer or smaller ones",))
        )
    for node in sorted(able, key=lambda n: (not n.open, ground.cost(n), -whole[n.id], n.id)):
        room = ground.room(node, min(missing, whole[node.id]))
        if room < min(missing, whole[node.id]) and (blocked := ground.blocked(node, room + 1)) is not None:
            blocks.append(blocked)
        if room:
            chosen.append((node.id, room))
            missing -= room
        if not missing:
            break
    if missing:
        conflicts = tuple(dict.fromkeys(name for blocked in blocks for name in blocked.conflicts))
        detail = (
            f"{missing} of the {sum(wanted.pieces)} pieces find no room then: "
            f"{'; '.join(b.detail for b in blocks[:NAMED])}"
        )
        return Refused(detail, conflicts, blocks[0].hints if blocks else ())
    chosen.sort()
    pinned = replace(
        wanted, nodes=tuple(node for node, _ in chosen), pieces=tuple(count for _, count in chosen)
    )
    return Granted(pinned, ground.warnings(pinned))


class _Ground:
    """What stands on each node when the reservation comes up."""

    def __init__(self, wanted: Reservation, snapshot: Snapshot) -> None:
        self.wanted, self.nodes, self._snapshot = wanted, snapshot.nodes, snapshot
        self._future = Future.of(
            snapshot.running, snapshot.durations, snapshot.now, grace_s=snapshot.preempt_grace_s
        )
        begin, end = next(
            occurrences(wanted, snapshot.now, wanted.end_at + timedelta(days=36500)),
            (wanted.start_at, wanted.end_at),
        )
        self._begin = begin
        self._from_s = max((begin - snapshot.now).total_seconds(), 0.0)
        self._until_s = (end - snapshot.now).total_seconds()
        self._meetings = meetings(
            wanted, sorted(snapshot.reservations, key=lambda other: other.name), snapshot.now
        )
        self._rooms: dict[object, int] = {}

    def room(self, node: Node, at_most: int) -> int:
        """Pieces of it that the node can hold beside what is in its way."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.blocked(node, middle) is None else (low, middle - 1)
        return low

    def whole_room(self, node: Node) -> int:
        """Pieces that fit if nothing else were there."""
        kind = (node.cpu_milli, node.memory_bytes, node.gpus, tuple(sorted(node.extras.items())))
        if kind not in self._rooms:
            self._rooms[kind] = self._room(Capacity.of([node.opened()]))
        return self._rooms[kind]

    def blocked(self, node: Node, pieces: int) -> Refused | None:
        """What keeps it from having so many pieces of the node, or the whole node."""
        for at, together in self._meetings:
            sharing = [other for other in together if node.id in other.nodes]
            for count in range(1, len(sharing) + 1):
                if not self._fits(node, pieces, sharing[:count]):
                    return _reserved(node, sharing[:count], at)
        stuck = self._stuck(node)
        if stuck and (
            self.wanted.resources is None
            or self._room_beside(node, [one.placement for one in stuck]) < pieces
        ):
            return _stays(node, stuck[-1])
        return None

    def cost(self, node: Node) -> int:
        """How much it upsets there: runs that may be in its way worst, then those that would be preempted and
        promises broken."""
        upset = len(self._leaving(node.id)) + sum(node.id in promise.nodes for promise in self._broken)
        return WORSE * len(self._may_stay(node.id)) + upset

    def warnings(self, pinned: Reservation) -> tuple[str, ...]:
        """Of whom it is in the way on its nodes."""
        nodes = pinned.nodes
        found = [f"node {name} is not open now" for name in nodes if not self.nodes[name].open]
        crowded = [
            name
            for at, name in enumerate(nodes)
            if self._crowded(name, pinned.pieces[at] if pinned.pieces else 0)
        ]
        staying = sorted({gang for name in crowded for gang in self._may_stay(name)})
        if staying:
            found.append(f"may not be preempted and may still be there then: {_listed(staying)}")
        leaving = sorted({gang for name in crowded for gang in self._leaving(name)})
        if leaving:
            found.append(f"preempted where they are still there then: {_listed(leaving)}")
        broken = sorted({promise.gang for promise in self._broken if set(nodes) & {*promise.nodes}})
        if broken:
            found.append(f"may start later than was promised: {_listed(broken)}")
        return tuple(found)

    def _crowded(self, node: NodeId, pieces: int) -> bool:
        """Whether not all that may still be there then can stay."""
        there = {*self._may_stay(node), *self._leaving(node)}
        placements = [one.placement for one in self._strangers(node) if one.gang.id in there]
        return self.wanted.resources is None or (
            bool(there) and self._room_beside(self.nodes[node], placements) < pieces
        )

    def _fits(self, node: Node, pieces: int, others: Sequence[Reservation]) -> bool:
        if self.wanted.resources is None or any(other.resources is None for other in others):
            return False
        free = Capacity.of([node.opened()])
        for rest in kept_on(node, others, (), self._snapshot.queues):
            free.hold_back(node.id, rest)
        return free.place(_pieces(self.wanted.resources, pieces, self._snapshot.now)) is not None

    def _room_beside(self, node: Node, placements: Sequence[Placement]) -> int:
        """Pieces that fit beside these and what others keep when it comes up first."""
        together = next((others for at, others in self._meetings if at <= self._begin), ())
        free = Capacity.of([node.opened()], placements)
        for rest in kept_on(node, together, placements, self._snapshot.queues):
            free.hold_back(node.id, rest)
        return self._room(free)

    def _room(self, free: Capacity) -> int:
        assert self.wanted.resources is not None
        found = free.place(
            _pieces(self.wanted.resources, sum(self.wanted.pieces), self._snapshot.now, at_least=1)
        )
        return found.gang.size if found else 0

    def _strangers(self, node: NodeId) -> list[Running]:
        running = (self._future.running(end.gang) for end in self._future.ends_on([node]))
        return [
            one
            for one in running
            if one is not None and not owns(one.gang, self.wanted, self._snapshot.queues)
        ]

    def _stuck(self, node: Node) -> list[Running]:
        """Runs that may not be preempted and are certain to be still there, the last to end last."""
        return [
            one
            for one in self._strangers(node.id)
            if not one.gang.preemptible and not one.stopping and self._low_s(one) > self._from_s
        ]

    def _leaving(self, node: NodeId) -> list[GangId]:
        ends = {end.gang: end.high_s for end in self._future.ends_on([node])}
        return [
            one.gang.id
            for one in self._strangers(node)
            if one.gang.preemptible and ends[one.gang.id] > self._from_s
        ]

    def _may_stay(self, node: NodeId) -> list[GangId]:
        ends = {end.gang: end.high_s for end in self._future.ends_on([node])}
        return [
            one.gang.id
            for one in self._strangers(node)
            if not one.gang.preemptible and (one.gang.endless or ends[one.gang.id] > self._from_s)
        ]

    def _low_s(self, running: Running) -> float:
        elapsed_s = (self._snapshot.now - (running.started_at or running.placed_at)).total_seconds()
        return remaining(running.gang, self._snapshot.durations, elapsed_s).low_s

    @cached_property
    def _broken(self) -> list[Promise]:
        """Promises to others that it may meet."""
        waiting = {gang.id: gang for gang in self._snapshot.pending if gang.id in self._snapshot.promises}
        found = []
        for name, gang in sorted(waiting.items()):
            promise = self._snapshot.promises[name]
            start_s = (promise.start_at - self._snapshot.now).total_seconds()
            until_s = start_s + expect(gang, self._snapshot.durations).high_s
            if (
                start_s < self._until_s
                and until_s > self._from_s
                and not owns(gang, self.wanted, self._snapshot.queues)
            ):
                found.append(promise)
        return found


def _pieces(request: Resources, count: int, at: datetime, *, at_least: int = 0) -> Gang:
    return Gang(GangId("pieces"), (Role("piece", count, request, at_least),), at)


def _reserved(node: Node, others: Sequence[Reservation], at: datetime) -> Refused:
    names = [other.name for other in others]
    return Refused(
        f"{node.id} is reserved at {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC: {', '.join(names)}",
        tuple(f"reservation:{name}" for name in names),
        ("choose another time or other nodes; `hop reserve ls` lists what is reserved",),
    )


def _stays(node: Node, running: Running) -> Refused:
    return Refused(
        f"run {running.gang.id} on {node.id} may not be preempted and will still be there",
        (f"run:{running.gang.id}",),
        ("choose a later time or other nodes, or stop the run",),
    )


def _listed(gangs: Sequence[GangId]) -> str:
    more = f" and {len(gangs) - NAMED} more" if len(gangs) > NAMED else ""
    return ", ".join(f"run {gang}" for gang in gangs[:NAMED]) + more

"""Decides whether a reservation can be granted, and on which nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from hopyard.domain.cluster import Node, Promise, Running, Snapshot
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.placement_causes import NeverFitsCause
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.scheduler.duration_estimates import estimate_duration, estimate_remaining
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.scheduler.placement.node_table import matches
from hopyard.scheduler.timeline.reservation_overlap import overlaps
from hopyard.scheduler.timeline.reservation_windows import may_use, occurrences
from hopyard.scheduler.timeline.reserved_capacity import reserved_on
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates

NON_PREEMPTIBLE_COST = 1000  # cost of a run that cannot be preempted, in runs that can


@dataclass(frozen=True, slots=True)
class PieceSizeShortfall:
    """Not even one piece fits any node."""

    cause: NeverFitsCause

    @property
    def conflicts(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class PieceCountShortfall:
    """The matching nodes can hold `capacity` pieces only, even when empty."""

    capacity: int
    requested: int
    request: Resources

    @property
    def conflicts(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class NodeReserved:
    """Other reservations have the node at that time."""

    node: NodeId
    at: datetime
    reservations: tuple[str, ...]

    @property
    def conflicts(self) -> tuple[str, ...]:
        return tuple(f"reservation:{name}" for name in self.reservations)


@dataclass(frozen=True, slots=True)
class NonPreemptibleRun:
    """A run on the node cannot be preempted and will certainly still run then."""

    run: GangId
    node: NodeId

    @property
    def conflicts(self) -> tuple[str, ...]:
        return (f"run:{self.run}",)


NodeConflict = NodeReserved | NonPreemptibleRun


@dataclass(frozen=True, slots=True)
class PieceCapacityConflict:
    """Some pieces do not fit at that time, because of these conflicts."""

    missing: int
    requested: int
    node_conflicts: tuple[NodeConflict, ...]

    @property
    def conflicts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for conflict in self.node_conflicts for name in conflict.conflicts))


RejectionCause = PieceSizeShortfall | PieceCountShortfall | PieceCapacityConflict | NodeConflict


@dataclass(frozen=True, slots=True)
class UnschedulableNode:
    """Nothing may start on the node now."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class NonPreemptibleRuns:
    """These runs cannot be preempted and may still run then."""

    runs: tuple[GangId, ...]


@dataclass(frozen=True, slots=True)
class RunPreemptions:
    """These runs are preempted if they still run then."""

    runs: tuple[GangId, ...]


@dataclass(frozen=True, slots=True)
class PromiseDelays:
    """These gangs may start later than promised."""

    runs: tuple[GangId, ...]


AdmissionWarning = UnschedulableNode | NonPreemptibleRuns | RunPreemptions | PromiseDelays


@dataclass(frozen=True, slots=True)
class Admitted:
    """The granted reservation with its nodes and pieces. warnings: the costs for other gangs."""

    reservation: Reservation
    warnings: tuple[AdmissionWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """The reservation cannot be granted. conflicts: names such as "reservation:NAME", "run:ID", "node:ID"."""

    cause: RejectionCause

    @property
    def conflicts(self) -> tuple[str, ...]:
        return self.cause.conflicts


def admit_reservation(reservation: Reservation, snapshot: Snapshot) -> Admitted | Rejected:
    """Decides at once whether the reservation is granted. It must not conflict with other reservations, or
    with runs that will certainly still run then and cannot be preempted. Promises and preemptible runs yield
    to it, and are named in the warnings.

    reservation.nodes: whole nodes. It is () for a reservation with `resources` and `where`, whose `pieces` is
    then the count alone, (count,). In this case the nodes with the smallest disruption are chosen, and of
    equal ones the node with the most capacity first. The nodes must exist (see `config.reservation_times`).
    """
    candidates = _NodeCandidates(reservation, snapshot)
    if reservation.resources is None:
        for name in reservation.nodes:
            conflict = candidates.conflict(snapshot.nodes[name], 1)
            if conflict is not None:
                return Rejected(conflict)
        return Admitted(reservation, candidates.warnings(reservation))
    return _choose_nodes(reservation, candidates)


def _choose_nodes(reservation: Reservation, candidates: _NodeCandidates) -> Admitted | Rejected:
    assert reservation.resources is not None
    matching = [
        node
        for node in sorted(candidates.nodes.values(), key=lambda node: node.id)
        if matches(reservation.where, node)
    ]
    total_pieces = {node.id: candidates.total_pieces(node) for node in matching}
    missing = sum(reservation.pieces)
    chosen: list[tuple[NodeId, int]] = []
    conflicts: list[NodeConflict] = []
    if sum(total_pieces.values()) < missing:
        role = replace(
            _pieces_gang(reservation.resources, 1, reservation.start_at).roles[0], where=reservation.where
        )
        too_large = never_fits(
            Gang(GangId("piece"), (role,), reservation.start_at), candidates.nodes.values()
        )
        return Rejected(
            PieceSizeShortfall(too_large)
            if too_large is not None
            else PieceCountShortfall(sum(total_pieces.values()), missing, reservation.resources)
        )
    for node in sorted(
        matching,
        key=lambda node: (
            not node.schedulable,
            candidates.disruption_cost(node),
            -total_pieces[node.id],
            node.id,
        ),
    ):
        free_pieces = candidates.free_pieces(node, min(missing, total_pieces[node.id]))
        if (
            free_pieces < min(missing, total_pieces[node.id])
            and (conflict := candidates.conflict(node, free_pieces + 1)) is not None
        ):
            conflicts.append(conflict)
        if free_pieces:
            chosen.append((node.id, free_pieces))
            missing -= free_pieces
        if not missing:
            break
    if missing:
        return Rejected(PieceCapacityConflict(missing, sum(reservation.pieces), tuple(conflicts)))
    chosen.sort()
    pinned = replace(
        reservation, nodes=tuple(node for node, _ in chosen), pieces=tuple(count for _, count in chosen)
    )
    return Admitted(pinned, candidates.warnings(pinned))


class _NodeCandidates:
    """The conflicts on each node at the time of the reservation."""

    def __init__(self, reservation: Reservation, snapshot: Snapshot) -> None:
        self.reservation, self.nodes, self._snapshot = reservation, snapshot.nodes, snapshot
        self._run_ends = RunEndEstimates.of(
            snapshot.running, snapshot.durations, snapshot.now, grace_s=snapshot.preempt_grace_s
        )
        begins_at, ends_at = next(
            occurrences(reservation, snapshot.now, reservation.end_at + timedelta(days=36500)),
            (reservation.start_at, reservation.end_at),
        )
        self._begins_at = begins_at
        self._from_s = max((begins_at - snapshot.now).total_seconds(), 0.0)
        self._until_s = (ends_at - snapshot.now).total_seconds()
        self._overlaps = overlaps(
            reservation, sorted(snapshot.reservations, key=lambda other: other.name), snapshot.now
        )
        self._room_by_state: dict[object, int] = {}

    def free_pieces(self, node: Node, limit: int) -> int:
        """Returns the pieces that the node can hold beside its conflicts."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.conflict(node, middle) is None else (low, middle - 1)
        return low

    def total_pieces(self, node: Node) -> int:
        """Returns the pieces that fit on the empty node."""
        kind = (node.cpu_milli, node.memory_bytes, node.gpus, tuple(sorted(node.extras.items())))
        if kind not in self._room_by_state:
            self._room_by_state[kind] = self._count_pieces(Capacity.of([node.as_schedulable()]))
        return self._room_by_state[kind]

    def conflict(self, node: Node, pieces: int) -> NodeConflict | None:
        """Returns why the reservation cannot have this number of pieces of the node, or the whole node."""
        for begins_at, active in self._overlaps:
            sharing = [other for other in active if node.id in other.nodes]
            for count in range(1, len(sharing) + 1):
                if not self._has_room(node, pieces, sharing[:count]):
                    names = tuple(other.name for other in sharing[:count])
                    return NodeReserved(node.id, begins_at, names)
        unpreemptible = self._unpreemptible_runs(node)
        if unpreemptible and (
            self.reservation.resources is None
            or self._pieces_beside(node, [run.placement for run in unpreemptible]) < pieces
        ):
            return NonPreemptibleRun(unpreemptible[-1].gang.id, node.id)
        return None

    def disruption_cost(self, node: Node) -> int:
        """Returns the disruption on the node. Runs that may conflict and cannot be preempted cost most;
        preempted runs and broken promises cost less."""
        yielding = len(self._preempted_runs(node.id)) + sum(
            node.id in promise.nodes for promise in self._broken_promises
        )
        return NON_PREEMPTIBLE_COST * len(self._possible_remainers(node.id)) + yielding

    def warnings(self, placed: Reservation) -> tuple[AdmissionWarning, ...]:
        """Returns the costs for other gangs on the nodes of the reservation."""
        nodes = placed.nodes
        warnings: list[AdmissionWarning] = [
            UnschedulableNode(name) for name in nodes if not self.nodes[name].schedulable
        ]
        overcommitted = [
            name
            for index, name in enumerate(nodes)
            if self._is_overcommitted(name, placed.pieces[index] if placed.pieces else 0)
        ]
        remaining = sorted({gang for name in overcommitted for gang in self._possible_remainers(name)})
        if remaining:
            warnings.append(NonPreemptibleRuns(tuple(remaining)))
        preempted = sorted({gang for name in overcommitted for gang in self._preempted_runs(name)})
        if preempted:
            warnings.append(RunPreemptions(tuple(preempted)))
        delayed = sorted({promise.gang for promise in self._broken_promises if set(nodes) & {*promise.nodes}})
        if delayed:
            warnings.append(PromiseDelays(tuple(delayed)))
        return tuple(warnings)

    def _is_overcommitted(self, node: NodeId, pieces: int) -> bool:
        """Returns whether the runs that may still run then do not all fit beside the reservation."""
        present = {*self._possible_remainers(node), *self._preempted_runs(node)}
        placements = [run.placement for run in self._other_runs(node) if run.gang.id in present]
        return self.reservation.resources is None or (
            bool(present) and self._pieces_beside(self.nodes[node], placements) < pieces
        )

    def _has_room(self, node: Node, pieces: int, others: Sequence[Reservation]) -> bool:
        if self.reservation.resources is None or any(other.resources is None for other in others):
            return False
        free = Capacity.of([node.as_schedulable()])
        for holdback in reserved_on(node, others, (), self._snapshot.queues):
            free.withhold(node.id, holdback)
        return free.place(_pieces_gang(self.reservation.resources, pieces, self._snapshot.now)) is not None

    def _pieces_beside(self, node: Node, placements: Sequence[Placement]) -> int:
        """Returns the pieces that fit beside these placements and the other reservations at the first
        occurrence."""
        active = next((others for at, others in self._overlaps if at <= self._begins_at), ())
        free = Capacity.of([node.as_schedulable()], placements)
        for holdback in reserved_on(node, active, placements, self._snapshot.queues):
            free.withhold(node.id, holdback)
        return self._count_pieces(free)

    def _count_pieces(self, free: Capacity) -> int:
        assert self.reservation.resources is not None
        placement = free.place(
            _pieces_gang(
                self.reservation.resources, sum(self.reservation.pieces), self._snapshot.now, at_least=1
            )
        )
        return placement.gang.size if placement else 0

    def _other_runs(self, node: NodeId) -> list[Running]:
        running = (self._run_ends.running(end.gang) for end in self._run_ends.ends_on([node]))
        return [
            run
            for run in running
            if run is not None and not may_use(run.gang, self.reservation, self._snapshot.queues)
        ]

    def _unpreemptible_runs(self, node: Node) -> list[Running]:
        """Returns runs that cannot be preempted and will certainly still run then, the last to end last."""
        return [
            run
            for run in self._other_runs(node.id)
            if not run.gang.preemptible and not run.stopping and self._earliest_end_s(run) > self._from_s
        ]

    def _preempted_runs(self, node: NodeId) -> list[GangId]:
        ends = {end.gang: end.high_s for end in self._run_ends.ends_on([node])}
        return [
            run.gang.id
            for run in self._other_runs(node)
            if run.gang.preemptible and ends[run.gang.id] > self._from_s
        ]

    def _possible_remainers(self, node: NodeId) -> list[GangId]:
        ends = {end.gang: end.high_s for end in self._run_ends.ends_on([node])}
        return [
            run.gang.id
            for run in self._other_runs(node)
            if not run.gang.preemptible and (run.gang.has_no_end or ends[run.gang.id] > self._from_s)
        ]

    def _earliest_end_s(self, running: Running) -> float:
        elapsed_s = (self._snapshot.now - (running.started_at or running.placed_at)).total_seconds()
        return estimate_remaining(running.gang, self._snapshot.durations, elapsed_s).low_s

    @cached_property
    def _broken_promises(self) -> list[Promise]:
        """Promises to other gangs that the reservation may break."""
        promised_gangs = {
            gang.id: gang for gang in self._snapshot.pending if gang.id in self._snapshot.promises
        }
        promises = []
        for name, gang in sorted(promised_gangs.items()):
            promise = self._snapshot.promises[name]
            start_s = (promise.start_at - self._snapshot.now).total_seconds()
            until_s = start_s + estimate_duration(gang, self._snapshot.durations).high_s
            if (
                start_s < self._until_s
                and until_s > self._from_s
                and not may_use(gang, self.reservation, self._snapshot.queues)
            ):
                promises.append(promise)
        return promises


def _pieces_gang(request: Resources, count: int, at: datetime, *, at_least: int = 0) -> Gang:
    return Gang(GangId("pieces"), (Role("piece", count, request, at_least),), at)

"""Looks for a place for a whole gang: all its replicas or none, on one node where that is possible, close
together otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from hopyard.domain.gang import NODE_LEVEL, Assignment, Closeness, Gang, Placement, Role, Topology
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.booked import Booked
from hopyard.scheduler.placement.choice import Choice, fill
from hopyard.scheduler.placement.domains import divide
from hopyard.scheduler.placement.fitting import Fitting, Shape
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Ints
from hopyard.scheduler.placement.legal import obeys_topology
from hopyard.scheduler.placement.ranking import Rankings
from hopyard.scheduler.placement.roles import parts, role_orders, weight
from hopyard.scheduler.placement.scores import Values
from hopyard.scheduler.placement.together import Together, movable

OTHER_SCORES = ("first-fit", "best-fit")
# a gang that says nothing about closeness stays within one of these where it can
USUAL_LEVELS = ("rack", "zone")

Found = list[Assignment] | None


class Search:
    """One gang on one state of the cluster. Exact for a gang of one role. For several roles, since packing in
    several dimensions is NP-hard: the most demanding role first, in a few orders; where these find no place,
    see `Together`.

    What is looked at is booked on `free` while the others look for theirs, and given back in the end: it is
    left as it was. Nodes are scored as they are without that, so that no score depends on which gang it was
    worked out for.
    """

    def __init__(
        self,
        free: Free,
        rankings: Rankings,
        gang: Gang,
        score: str,
        closed_models: frozenset[str],
        prefer: frozenset[NodeId],
    ) -> None:
        self._free, self._rankings, self._gang, self._score, self._closed = (
            free,
            rankings,
            gang,
            score,
            closed_models,
        )
        self._preference = self._preferred(prefer)
        self._booked = Booked(free)

    def place(self) -> Placement | None:
        fewest = self._sized([role.fewest for role in self._gang.roles])
        if fewest is None or not self._gang.elastic:
            return fewest
        return self._grown(fewest)

    def _grown(self, fewest: Placement) -> Placement:
        """As many replicas as fit, role after role."""
        best = fewest
        counts = [role.fewest for role in self._gang.roles]
        for index, role in enumerate(self._gang.roles):
            low, high = counts[index], role.replicas
            while low < high:
                middle = (low + high + 1) // 2
                found = self._sized([*counts[:index], middle, *counts[index + 1 :]])
                if found is None:
                    high = middle - 1
                else:
                    low, best = middle, found
            counts[index] = low
        return best

    def _sized(self, counts: Sequence[int]) -> Placement | None:
        """The best place over all engines, on the fewest nodes: a gang is never split over two. Where several
        roles obey rules of topology, what is found depends on which nodes are taken first: so whether it is
        found does not depend on the score alone."""
        gang, wanted = self._gang.sized(counts), self._score
        exact = len(gang.roles) == 1 or (gang.topology is None and all(map(movable, gang.roles)))
        try:
            for self._score in dict.fromkeys([wanted] if exact else [wanted, *OTHER_SCORES]):
                places = [
                    found for rows in self._engines(gang) if (found := self._place(gang, rows)) is not None
                ]
                if places:
                    return Placement(gang, tuple(min(places, key=lambda found: len({a.node for a in found}))))
            return None
        finally:
            self._score = wanted

    def _engines(self, gang: Gang) -> Sequence[Ints]:
        """The nodes of each engine; all of them at once for a gang of one replica."""
        ground = self._free.ground
        return [ground.rows] if gang.size == 1 or len(ground.of_engine) <= 1 else ground.of_engine

    def _preferred(self, prefer: frozenset[NodeId]) -> Ints | None:
        """Smaller is better: those to prefer, then those that hold more of what it wants."""
        if not prefer and not self._gang.wants:
            return None
        ground = self._free.ground
        found = np.zeros(len(ground.nodes), np.int64)
        for key in self._gang.wants:
            found -= ground.holding(key)
        for node in prefer:
            if node in ground.row:
                found[ground.row[node]] -= len(self._gang.wants) + 1
        return found

    def _place(self, gang: Gang, rows: Ints) -> Found:
        rule = gang.topology
        if rule is None:
            return self._near(gang, rows)
        rows = self._inside(rule.level, rows)
        if rule.rule is Closeness.SAME:
            return self._same(gang, rule.level, rows)
        if len(gang.roles) == 1 and gang.roles[0].topology is None:
            return self._roles([replace(gang.roles[0], topology=rule)], rows)
        found = self._same(gang, rule.level, rows) if rule.rule is not Closeness.SPREAD else None
        found = found or self._slices(gang, rule, rows) or self._roles(gang.roles, rows)
        return found if found is not None and obeys_topology(gang, found, self._free.ground.nodes) else None

    def _inside(self, level: str, rows: Ints) -> Ints:
        inside = self._free.ground.inside(level)
        return rows if inside is None else rows[inside[rows]]

    def _near(self, gang: Gang, rows: Ints) -> Found:
        """On one node, else in one rack, else in one zone, else anywhere."""
        if gang.size == 1 or any(role.topology is not None for role in gang.roles):
            return self._roles(gang.roles, rows)
        found = self._same(gang, NODE_LEVEL, rows)
        for level in USUAL_LEVELS:
            found = found or (
                self._same(gang, level, rows) if self._free.ground.domains(level)[1] > 1 else None
            )
        return found or self._roles(gang.roles, rows)

    def _same(self, gang: Gang, level: str, rows: Ints) -> Found:
        """In one domain of the level: the tightest that takes it."""
        domains, count = self._free.ground.domains(level)
        rows = self._inside(level, rows)
        fitting = [self._fitting(role) for role in gang.roles]
        rooms = [
            fit.room(self._free, role.replicas, rows) for fit, role in zip(fitting, gang.roles, strict=True)
        ]
        if level == NODE_LEVEL:
            return self._one_node(gang, rows, rooms)
        possible, total = np.ones(count, np.bool_), np.zeros(count, np.int64)
        for role, room in zip(gang.roles, rooms, strict=True):
            held = np.bincount(domains[rows], room, count).astype(np.int64)
            possible &= held >= role.replicas
            total += held
        chosen = np.flatnonzero(possible)
        for domain in chosen[np.argsort(total[chosen], kind="stable")].tolist():
            found = self._roles(gang.roles, rows[domains[rows] == domain])
            if found is not None:
                return found
        return None

    def _one_node(self, gang: Gang, rows: Ints, rooms: Sequence[Ints]) -> Found:
        """All on one node: the best of those that take it."""
        possible = np.ones(len(rows), np.bool_)
        for role, room in zip(gang.roles, rooms, strict=True):
            possible &= room >= role.replicas
        possible &= self._enough_together(gang, rows)
        able = rows[possible]
        if not len(able):
            return None
        heaviest = max(gang.roles, key=weight)
        choice = self._choice(heaviest, heaviest.replicas if len(gang.roles) == 1 else 1)
        for row in choice.in_order(able):
            found = self._roles(gang.roles, np.array([row]))
            if found is not None:
                return found
        return None

    def _enough_together(self, gang: Gang, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Nodes that have enough CPU and memory for all roles."""
        cpu = sum(role.replicas * role.resources.cpu_milli for role in gang.roles)
        memory = sum(role.replicas * role.resources.memory_bytes for role in gang.roles)
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.ones(len(rows), np.bool_)
        if cpu:
            found &= self._free.cpu[rows] >= cpu
        if memory:
            found &= self._free.memory[rows] >= memory
        return found

    def _slices(self, gang: Gang, rule: Topology, rows: Ints) -> Found:
        """Slices of several roles, one after another: each a small gang in one domain of the level, in as few
        as possible."""
        domains, _ = self._free.ground.domains(rule.level)
        slices = list(parts(gang, rule.slice))
        room = sum(self._fitting(role).room(self._free, role.replicas, rows) for role in gang.roles)
        usable = np.unique(domains[rows][room > 0]).tolist()
        for most_domains in range(
            len(slices) if rule.rule is Closeness.SPREAD else 1, min(len(slices), len(usable)) + 1
        ):
            most = -(-len(slices) // most_domains) if rule.rule is not Closeness.NEAR else len(slices)
            found = self._put_slices(
                gang, slices, most_domains, most, usable, {d: rows[domains[rows] == d] for d in usable}
            )
            if found is not None:
                return found
        return None

    def _put_slices(
        self,
        gang: Gang,
        slices: Sequence[tuple[list[int], Gang]],
        most_domains: int,
        most: int,
        usable: Sequence[int],
        rows: dict[int, Ints],
    ) -> Found:
        """At most so many domains, with at most so many slices each."""
        placed, used = [Assignment(0, NodeId(""))] * gang.size, dict[int, int]()
        before = len(self._booked)
        for ranks, part in slices:
            fresh = [d for d in usable if d not in used] if len(used) < most_domains else []
            for domain in [*(d for d, held in used.items() if held < most), *fresh]:
                found = self._roles(part.roles, rows[domain])
                if found is not None:
                    used[domain] = used.get(domain, 0) + 1
                    for rank, (_, role), assignment in zip(ranks, part.requests(), found, strict=True):
                        placed[rank] = replace(assignment, rank=rank)
                        self._booked.add(role.resources, assignment)
                    break
            else:
                break
        return placed if self._booked.give_back(before) == gang.size else None

    def _roles(self, roles: Sequence[Role], rows: Ints) -> Found:
        """Role by role, in the first order that works; where none does, as they fit together."""
        if len(roles) == 1 and not (roles[0].resources.gpus or roles[0].resources.shares_gpu):
            return self._alone(roles[0], rows)
        first = list(accumulate((role.replicas for role in roles), initial=0))
        for order in role_orders(roles):
            placed = [Assignment(0, NodeId(""))] * first[-1]
            before = len(self._booked)
            used: set[int] = set()
            for index in order:
                found = self._role(roles[index], first[index], rows, used)
                if found is None:
                    break
                placed[first[index] : first[index + 1]] = found
            if self._booked.give_back(before) == first[-1]:
                return placed
        return self._together(roles, rows)

    def _together(self, roles: Sequence[Role], rows: Ints) -> Found:
        """Wherever each of them goes by itself; None where rules of topology forbid to look at that."""
        if min(len(roles), len(rows)) <= 1 or not all(movable(role) for role in roles):
            return None
        fittings, order = [self._fitting(role) for role in roles], role_orders(roles)[0]
        divided = Together(self._free, self._booked, roles, fittings, order).divide(rows) or []
        first, before = list(accumulate((role.replicas for role in roles), initial=0)), len(self._booked)
        placed = [Assignment(0, NodeId(""))] * first[-1]
        for row, counts in divided:
            for index in order:
                for _ in range(counts[index]):
                    assignment = fittings[index].seat(self._free, first[index], row)
                    if assignment is None:
                        break
                    self._booked.add(roles[index].resources, assignment)
                    placed[first[index]] = assignment
                    first[index] += 1
        return placed if self._booked.give_back(before) == first[-1] else None

    def _alone(self, role: Role, rows: Ints) -> Found:
        """Of one role that asks for no cards: there is nobody for whom anything is to be used up."""
        chosen, ids = self._chosen(role, self._fitting(role), rows, set()), self._free.ground.ids
        return None if chosen is None else [Assignment(rank, ids[row]) for rank, row in enumerate(chosen)]

    def _chosen(self, role: Role, fitting: Fitting, rows: Ints, used: set[int]) -> list[int] | None:
        """The node of each replica of a role, in rank order."""
        room = fitting.room(self._free, role.replicas, rows)
        able = np.flatnonzero(room)
        return self._rows_for(role, rows[able], room[able], used)

    def _role(self, role: Role, first: int, rows: Ints, used: set[int]) -> Found:
        """The places of one role's replicas, booked."""
        fitting = self._fitting(role)
        chosen = self._chosen(role, fitting, rows, used)
        if chosen is None:
            return None
        found = []
        for rank, row in enumerate(chosen, start=first):
            assignment = fitting.seat(self._free, rank, row)
            if assignment is None:
                return None
            self._booked.add(role.resources, assignment)
            found.append(assignment)
        used.update(chosen)
        return found

    def _rows_for(self, role: Role, rows: Ints, room: Ints, used: set[int]) -> list[int] | None:
        """The node of each replica, in rank order. `rows` are those with room."""
        rule = role.topology

        def choice(times: int) -> Choice:
            return self._choice(role, times, used)

        if rule is None or (rule.level == NODE_LEVEL and rule.rule is Closeness.NEAR and rule.slice == 1):
            return fill(choice, role.replicas, rows, room)
        if rule.level == NODE_LEVEL and rule.rule is Closeness.SPREAD and rule.slice == 1:
            return choice(1).best(rows, role.replicas)
        domains, count = self._free.ground.domains(rule.level)
        inside = self._free.ground.inside(rule.level)
        if inside is not None:
            rows, room = rows[inside[rows]], room[inside[rows]]
        domain = domains[rows]
        if rule.level == NODE_LEVEL and rule.rule is Closeness.SAME:
            return fill(choice, role.replicas, rows[room >= role.replicas], room[room >= role.replicas])
        held = np.bincount(domain, room, count).astype(np.int64)
        shares = divide(rule.rule, rule.slice, role.replicas, held.tolist())
        if shares is None:
            return None
        found: list[int] = []
        for share in shares:
            here = np.flatnonzero(domain == share.domain)
            found += fill(choice, share.count, rows[here], room[here]) or []
        return found

    def _fitting(self, role: Role) -> Fitting:
        return self._rankings.fitting(Shape(role.resources, role.where, self._closed_to(role)))

    def _closed_to(self, role: Role) -> frozenset[str]:
        """What may be used of these models is for the roles that name no other."""
        if not self._closed or len(self._gang.roles) == 1:
            return self._closed
        named = {*map(str.casefold, role.resources.gpu_models)}
        return frozenset() if named and named <= self._closed else self._closed

    def _choice(self, role: Role, times: int, used: set[int] | None = None) -> Choice:
        """The order of nodes for `times` of its replicas at once, as they were when the search began."""
        if self._rankings.indifferent(self._score):
            return Choice(None, self._preference, used or set())
        request = role.resources
        if times > 1 and not request.shares_gpu:
            request = replace(
                request,
                cpu_milli=times * request.cpu_milli,
                memory_bytes=times * request.memory_bytes,
                gpus=times * request.gpus,
                extras=tuple((name, times * amount) for name, amount in request.extras),
            )
        values = self._scores(Shape(request, role.where, self._closed_to(role)))
        return Choice(values, self._preference, used or set())

    def _scores(self, shape: Shape) -> Values:
        """Without what is booked: scores are kept for other searches, and those of nodes alike are worked out
        once for all."""
        if self._rankings.knows(self._score, shape):
            return self._rankings.values(self._score, shape)
        with self._booked.aside():
            return self._rankings.values(self._score, shape)

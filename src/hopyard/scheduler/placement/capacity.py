"""What every node has left under what runs: where a gang would go, and what taking its place leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hopyard.domain.amounts import on_each_node
from hopyard.domain.cluster import HoldReason, Node
from hopyard.domain.gang import ANYWHERE, Assignment, Gang, Placement, Role, Where
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.queue import CPU, GPU, MEMORY
from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.fitting import Shape
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Bools, Ground, Ints, same_machine
from hopyard.scheduler.placement.mix import Mix
from hopyard.scheduler.placement.ranking import Best, Rankings
from hopyard.scheduler.placement.search import Search

# What is taken of nodes, cards and extras that are not there: they may come back while their runs still hold
# them.
Elsewhere = dict[tuple[NodeId, str, int | str], int]
Rows = Ints | slice
Plain = tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]
Known = tuple[Placement, Plain | None]  # with what `_plain` says of it
Latest = tuple[Placement | None, Best | None]  # the place that was found last, and how
NOTHING: Latest = (None, None)
MOST_KNOWN = 65_536  # placements of which it is remembered what they hold


@dataclass(frozen=True, slots=True)
class Rest:
    """What is to be held back of one node: of all but GPUs how much, and how often a GPU, or share of one,
    such as `card` asks for."""

    cpu_milli: int
    memory_bytes: int
    extras: tuple[tuple[str, int], ...]
    card: Resources
    cards: int


class Capacity:
    """Mutable, of one plan or of one Planner. Equal nodes and placements give equal places, in whatever order
    they came."""

    def __init__(self, free: Free, elsewhere: Elsewhere, rankings: Rankings | None = None) -> None:
        self._free, self._elsewhere = free, elsewhere
        self._rankings = Rankings(free) if rankings is None else rankings
        self._latest: Latest = NOTHING
        self._plain: dict[GangId, Known] = {}  # as long as rows and cards are the same

    @classmethod
    def of(cls, nodes: Iterable[Node], running: Iterable[Placement] = ()) -> Capacity:
        """What these nodes have left. Nothing is ever placed on those that are not open."""
        found = cls(Free.whole(Ground(nodes)), {})
        for placement in running:
            found.take(placement)
        return found

    def place(
        self,
        gang: Gang,
        *,
        score: str = "fragmentation",
        closed_models: frozenset[str] = frozenset(),
        prefer: frozenset[NodeId] = frozenset(),
    ) -> Placement | None:
        """Where the gang would go, whole, or None; nothing is taken. An elastic gang is as large as fits.

        score: the name of a rule of `placement.scores`. closed_models: models of GPUs that it may not use
        now. prefer: nodes to use before others where they will do.
        """
        if (
            len(gang.roles) == 1
            and gang.size == 1
            and not (gang.wants or prefer or gang.topology or gang.roles[0].topology)
        ):
            return self._place_one(gang, gang.roles[0], score, closed_models)
        return Search(self._free, self._rankings, gang, score, closed_models, prefer).place()

    def place_largest(
        self,
        sizes: Sequence[tuple[Gang, frozenset[str]]],
        *,
        score: str = "fragmentation",
        prefer: frozenset[NodeId] = frozenset(),
    ) -> Placement | None:
        """`place` of one gang as large as possible where it may be of several sizes, each with the models
        closed to it; of two alike the first."""
        places = (
            self.place(gang, score=score, closed_models=closed, prefer=prefer) for gang, closed in sizes
        )
        return max(filter(None, places), key=lambda found: found.gang.size, default=None)

    def surely_holds(self, gang: Gang, rows: Ints) -> bool:
        """Whether there is a place for it on these nodes alone, by their indices in `nodes`, where that takes
        little to see: of gangs of several roles or with a topology, and where nodes are of several engines,
        it says no, whatever there is."""
        role = gang.roles[0]
        split = role.replicas > 1 and len(self._free.ground.of_engine) > 1  # no gang is, over engines
        if len(gang.roles) > 1 or gang.topology or role.topology or split:
            return False
        fitting = self._rankings.fitting(Shape(role.resources, role.where))
        return int(fitting.room(self._free, role.replicas, rows).sum()) >= role.replicas

    def _place_one(
        self, gang: Gang, role: Role, score: str, closed_models: frozenset[str]
    ) -> Placement | None:
        """Of one replica, which most gangs have: the best node is known already but for those that
        changed."""
        best = self._rankings.best(score, Shape(role.resources, role.where, closed_models))
        if best is None:
            return None
        if role.min_replicas:
            gang = gang.sized([1])
        row, column, fitting, ground = best.row, best.column, best.fitting, self._free.ground
        node, gpus = ground.nodes[row].id, ground.gpus[row]
        if column >= 0:
            assignment = Assignment(0, node, (gpus[column].index,), fitting.milli(row, column))
        else:
            cards = fitting.cards(self._free, row)
            assert cards is not None
            assignment = Assignment(0, node, tuple([gpus[j].index for j in cards[0]]))
        found = Placement(gang, (assignment,))
        self._latest = found, best
        return found

    def weigh(self, mix: Mix) -> None:
        """Keep room for these shapes: those that gangs usually ask for. Copies made before are not told."""
        self._rankings.weigh(mix)

    def take(self, placement: Placement) -> None:
        """Use up what a placement holds. Nodes that are not there are remembered: it holds them when they
        come back."""
        found, best = self._latest
        if found is placement and best is not None:
            request, assignment, ground = (
                placement.gang.roles[0].resources,
                placement.assignments[0],
                self._free.ground,
            )
            columns = tuple([ground.column[best.row][index] for index in assignment.gpus])
            self._free.use(best.row, request, columns, assignment.gpu_milli)
            self._rankings.took(best)
        else:
            self._book(placement, 1)
        self._latest = NOTHING

    def give_back(self, placement: Placement) -> None:
        """Exactly undo `take`."""
        self._book(placement, -1)

    def take_all(self, placements: Iterable[Placement]) -> None:
        """`take` each; where they are many, much cheaper."""
        self._book_all(placements, 1)

    def give_back_all(self, placements: Iterable[Placement]) -> None:
        """Exactly undo `take_all`."""
        self._book_all(placements, -1)

    def _book_all(self, placements: Iterable[Placement], sign: int) -> None:
        nodes, cards, others = self._listed(placements)
        for placement in others:
            self._book(placement, sign)
        self._latest = NOTHING
        if nodes.size:
            np.subtract.at(self._free.cpu, nodes[:, 0], sign * nodes[:, 1])
            np.subtract.at(self._free.memory, nodes[:, 0], sign * nodes[:, 2])
            np.subtract.at(self._free.gpu, (cards[:, 0], cards[:, 1]), sign * cards[:, 2])
            self._rankings.changed_many(np.unique(nodes[:, 0]))

    def _listed(self, placements: Iterable[Placement]) -> tuple[Ints, Ints, list[Placement]]:
        """What they hold, as of `_plain`, and those that hold anything else."""
        ground, known = self._free.ground, self._plain
        nodes: list[tuple[int, int, int]] = []
        cards: list[tuple[int, int, int]] = []
        others: list[Placement] = []
        if len(known) > MOST_KNOWN:
            known.clear()
        for placement in placements:
            found = known.get(placement.gang.id)
            if found is None or found[0] is not placement:
                found = known[placement.gang.id] = placement, _plain(placement, ground)
            if found[1] is None:
                others.append(placement)
            else:
                nodes += found[1][0]
                cards += found[1][1]
        return np.array(nodes, np.int64).reshape(-1, 3), np.array(cards, np.int64).reshape(-1, 3), others

    def _book(self, placement: Placement, sign: int) -> None:
        free, ground = self._free, self._free.ground
        for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
            request, node = role.resources, assignment.node
            row = ground.row.get(node)
            if row is None:
                self._remember(node, "cpu", 0, sign * request.cpu_milli)
                self._remember(node, "memory", 0, sign * request.memory_bytes)
                columns: list[int] = []
            else:
                columns = [
                    ground.column[row][index] for index in assignment.gpus if index in ground.column[row]
                ]
                free.use(row, request, tuple(columns), assignment.gpu_milli, sign)
                self._rankings.changed(row)
            if row is None or len(columns) < len(assignment.gpus):
                for index in assignment.gpus:
                    if row is None or index not in ground.column[row]:
                        self._remember(node, "gpu", index, sign * assignment.gpu_milli)
            for name, amount in request.extras:
                if row is None or name not in free.extras:
                    self._remember(node, "extra", name, sign * amount)

    def _remember(self, node: NodeId, kind: str, which: int | str, amount: int) -> None:
        key = (node, kind, which)
        left = self._elsewhere.get(key, 0) + amount
        if left:
            self._elsewhere[key] = left
        else:
            self._elsewhere.pop(key, None)

    def copy(self) -> Capacity:
        """One that changes on its own from now on."""
        free = self._free.copy()
        found = Capacity(free, dict(self._elsewhere), self._rankings.copy(free))
        found._plain = self._plain
        return found

    def meet(self, other: Capacity, nodes: Iterable[NodeId] | None = None) -> None:
        """Keep, of each node and each of its GPUs, only what is free in both; of these nodes only where they
        are named, and then only of those that both have."""
        mine, theirs = self._free, other._free
        here: Rows
        there: Rows
        if nodes is not None:
            known = [node for node in nodes if node in mine.ground.row and node in theirs.ground.row]
            here, there = self.rows(known), other.rows(known)
        elif mine.ground is theirs.ground:
            here = there = slice(None)
        else:
            theirs, here = theirs.aligned(mine.ground), slice(None)
            there = here
        # a node's cards stand in the same columns wherever it is
        width = min(mine.gpu.shape[1], theirs.gpu.shape[1])
        pairs = [
            (mine.cpu, theirs.cpu),
            (mine.memory, theirs.memory),
            (mine.gpu[:, :width], theirs.gpu[:, :width]),
        ]
        pairs += [(left, theirs.extras[name]) for name, left in mine.extras.items() if name in theirs.extras]
        changed = np.zeros(len(mine.cpu), np.bool_)
        for left, other_left in pairs:
            before, after = left[here], other_left[there]
            less = after < before
            if less.any():
                left[here] = np.where(less, after, before)
                changed[here] |= less if less.ndim == 1 else less.any(axis=1)
        self._rankings.changed_many(np.flatnonzero(changed))

    def close(self, nodes: Iterable[NodeId]) -> None:
        """Leave nothing free on these nodes. What runs there is not touched, and giving it back opens that
        much of them."""
        free, rows = self._free, self.rows(nodes)
        for left in (free.cpu, free.memory, free.gpu, *free.extras.values()):
            left[rows] = np.minimum(left[rows], 0)
        self._rankings.changed_many(rows)

    def less(self, other: Capacity) -> None:
        """Keep, of each node and each of its GPUs, only what is free here beyond what is free there.
        Both have the same nodes."""
        mine, theirs = self._free, other._free
        assert mine.ground.ids == theirs.ground.ids
        mine.cpu -= np.maximum(theirs.cpu, 0)
        mine.memory -= np.maximum(theirs.memory, 0)
        mine.gpu -= np.maximum(theirs.gpu, 0)
        for name, left in mine.extras.items():
            left -= np.maximum(theirs.extras[name], 0)  # noqa: PLW2901 - in place
        self._rankings.changed_many(np.arange(len(mine.cpu)))

    def widen(self, part: Capacity) -> None:
        """Make free, of each node of a part and each of its GPUs, what is free there, where that is more."""
        mine, theirs = self._free, part._free
        rows = self.rows(part.ids)
        width = theirs.gpu.shape[1]
        mine.gpu[rows, :width] = np.maximum(mine.gpu[rows, :width], theirs.gpu)
        mine.cpu[rows] = np.maximum(mine.cpu[rows], theirs.cpu)
        mine.memory[rows] = np.maximum(mine.memory[rows], theirs.memory)
        for name, left in theirs.extras.items():
            mine.extras[name][rows] = np.maximum(mine.extras[name][rows], left)
        self._rankings.changed_many(rows)

    def hold_back(self, node: NodeId, rest: Rest) -> tuple[int, ...]:
        """Use up this on one node; all that is left of what there is too little of.
        What is missing of each of its parts."""
        free, row = self._free, self._free.ground.row.get(node)
        if row is None:
            return (rest.cpu_milli, rest.memory_bytes, *(amount for _, amount in rest.extras), rest.cards)
        self._rankings.changed(row)
        missing = []
        for left, amount in [
            (free.cpu, rest.cpu_milli),
            (free.memory, rest.memory_bytes),
            *((free.extras.get(name), amount) for name, amount in rest.extras),
        ]:
            held = 0 if left is None else min(amount, max(int(left[row]), 0))
            if left is not None:
                left[row] -= held
            missing.append(amount - held)
        fitting = self._rankings.fitting(Shape(rest.card, ANYWHERE))
        for count in range(rest.cards):
            found = fitting.cards(free, row)
            if found is None:
                free.gpu[row] = np.minimum(free.gpu[row], 0)
                return (*missing, rest.cards - count)
            free.use(row, rest.card, *found)
        return (*missing, 0)

    def part(self, nodes: Iterable[NodeId]) -> Capacity:
        """These nodes alone; changes on its own from now on.
        Looking for a place there costs by what they are."""
        names = sorted({node for node in nodes if node in self._free.ground.row})
        rows = self.rows(names)
        ground = Ground(self._free.ground.nodes[row] for row in rows)
        free = self._free
        gpu = free.gpu[rows][:, : ground.gpu.shape[1]].copy()
        part = Free(
            ground, free.cpu[rows], free.memory[rows], gpu, {k: v[rows] for k, v in free.extras.items()}
        )
        return Capacity(part, {}, Rankings(part, self._rankings.mix))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """As they are in total, in the order of their ids."""
        return self._free.ground.nodes

    @property
    def ids(self) -> tuple[NodeId, ...]:
        """Of `nodes`; the same object until they change."""
        return self._free.ground.ids

    def sums(self) -> tuple[Ints, Ints, Ints]:
        """What each of `nodes` has left: thousandths of cores, bytes, thousandths of GPUs of all models
        together."""
        return self._free.cpu, self._free.memory, np.maximum(self._free.gpu, 0).sum(axis=1)

    def sums_without(self, gone: Iterable[Placement]) -> tuple[Ints, Ints, Ints]:
        """As `sums`, if these had left."""
        row = self._free.ground.row
        cpu, memory, gpu = (
            self._free.cpu.copy(),
            self._free.memory.copy(),
            np.maximum(self._free.gpu, 0).sum(axis=1),
        )
        nodes, cards, others = self._listed(gone)
        np.add.at(cpu, nodes[:, 0], nodes[:, 1])
        np.add.at(memory, nodes[:, 0], nodes[:, 2])
        np.add.at(gpu, cards[:, 0], cards[:, 2])
        for placement in others:
            for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
                at = row.get(assignment.node)
                if at is not None:
                    cpu[at] += role.resources.cpu_milli
                    memory[at] += role.resources.memory_bytes
                    gpu[at] += len(assignment.gpus) * assignment.gpu_milli
        return cpu, memory, gpu

    def allowed(self, where: Where) -> Bools:
        """Which of `nodes` are open and may be used."""
        return self._free.ground.allowed(where)

    def node(self, node: NodeId) -> Node | None:
        """The node as it is in total, None where it is not there."""
        row = self._free.ground.row.get(node)
        return None if row is None else self._free.ground.nodes[row]

    def left_on(self, node: NodeId) -> dict[str, int]:
        """Thousandths of cores, bytes, and thousandths of all its GPUs together that are free on a node;
        nothing where it is not there or not open."""
        row = self._free.ground.row.get(node)
        if row is None or not self._free.ground.open[row]:
            return {}
        return {
            CPU: int(self._free.cpu[row]),
            MEMORY: int(self._free.memory[row]),
            GPU: int(np.maximum(self._free.gpu[row], 0).sum()),
        }

    def is_free(self, placement: Placement, names: Collection[str]) -> bool:
        """Whether so much of these resources (CPU, MEMORY, GPU) is free where it would be; of GPUs on just
        those cards."""
        for node, needs in on_each_node(placement).items():
            left = self.left_on(node)
            if any(need > left.get(name, 0) for name, need in needs.items() if name in names):
                return False
        cards = Counter[tuple[NodeId, int]]()
        for assignment in placement.assignments if GPU in names else ():
            cards.update({(assignment.node, index): assignment.gpu_milli for index in assignment.gpus})
        ground = self._free.ground
        return all(
            milli <= self._free.gpu[ground.row[node], ground.column[ground.row[node]][index]]
            for (node, index), milli in cards.items()
        )

    def rows(self, nodes: Iterable[NodeId]) -> Ints:
        """Of those of these that are there, the indices in `nodes`."""
        row = self._free.ground.row
        return np.array([row[node] for node in nodes if node in row], np.int64)

    def set_node(self, node: Node) -> None:
        """A node that came or changed; what is taken of it stays taken."""
        free = self._free
        row = free.ground.row.get(node.id)
        if row is not None and same_machine(free.ground.nodes[row], node):
            was_open = free.ground.open[row]
            free.ground = free.ground.turned(row, node)
            if node.open != was_open:
                self._rankings.turned(row, opened=node.open)
            return
        self._move([*(n for n in self._free.ground.nodes if n.id != node.id), node])

    def drop_node(self, node: NodeId) -> None:
        """A node that went; what is taken of it is remembered."""
        self._move([n for n in self._free.ground.nodes if n.id != node])

    def _move(self, nodes: Iterable[Node]) -> None:
        """Put what is taken onto other nodes."""
        old, ground = self._free, Ground(nodes)
        new = Free.whole(ground)
        taken = dict(self._elsewhere)
        self._free, self._elsewhere, self._rankings = new, {}, Rankings(new, self._rankings.mix)
        self._latest, self._plain = NOTHING, {}
        for row, node in enumerate(old.ground.nodes):
            taken[node.id, "cpu", 0] = int(old.ground.cpu[row] - old.cpu[row])
            taken[node.id, "memory", 0] = int(old.ground.memory[row] - old.memory[row])
            for gpu, total, left in zip(
                old.ground.gpus[row], old.ground.gpu[row].tolist(), old.gpu[row].tolist(), strict=False
            ):
                taken[node.id, "gpu", gpu.index] = total - left
            for name, array in old.extras.items():
                taken[node.id, "extra", name] = int(old.ground.extras[name][row] - array[row])
        for (node_id, kind, which), amount in taken.items():
            if amount:
                self._put(node_id, kind, which, amount)

    def _put(self, node: NodeId, kind: str, which: int | str, amount: int) -> None:
        free = self._free
        row = free.ground.row.get(node)
        if row is not None and kind == "cpu":
            free.cpu[row] -= amount
        elif row is not None and kind == "memory":
            free.memory[row] -= amount
        elif row is not None and kind == "gpu" and which in free.ground.column[row]:
            free.gpu[row, free.ground.column[row][int(which)]] -= amount
        elif row is not None and kind == "extra" and which in free.extras:
            free.extras[str(which)][row] -= amount
        else:
            self._remember(node, kind, which, amount)

    def reason(self, gang: Gang) -> HoldReason:
        """Of `why_not`, for much less than its sentence costs."""
        from hopyard.scheduler.placement.explain import reason

        return reason(self._free, gang)

    def sentence(self, gang: Gang) -> Callable[[], str]:
        """Of `why_not`, made when it is called: of a copy that stays as it is."""
        return lambda: self.why_not(gang)[1]

    def why_not(self, gang: Gang) -> tuple[HoldReason, str]:
        """Why `place` finds no place for it: the reason, and a sentence with the numbers."""
        from hopyard.scheduler.placement.explain import why_not

        return why_not(self._free, gang)


def _plain(placement: Placement, ground: Ground) -> Plain | None:
    """What it holds: row, thousandths of cores and bytes of each replica; row, column and thousandths of each
    GPU. None where some of its nodes or cards are not there, or it holds anything else."""
    nodes, cards = [], []
    for (_, role), assignment in zip(placement.gang.requests(), placement.assignments, strict=True):
        request, row = role.resources, ground.row.get(assignment.node)
        if row is None or request.extras:
            return None
        nodes.append((row, request.cpu_milli, request.memory_bytes))
        if assignment.gpus:
            column, milli = ground.column[row], assignment.gpu_milli
            for index in assignment.gpus:
                if index not in column:
                    return None
                cards.append((row, column[index], milli))
    return nodes, cards

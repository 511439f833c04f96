"""What is left of a node is worth what usual gangs can still do with it.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX
ATC'23): the best place for a gang is where the GPUs that the usual shapes of gangs cannot use any more grow
least. There, all that is left of a card is usable for a shape if one such replica fits the node, and a shape
counts by how often it is asked for. The fluid measure, which is ours, differs twice:

    usable(node, shape) = min(cards cut up into whole replicas, GPU for the node's free CPU and memory at the
    shape's ratio)

so that cards whose CPU is nearly gone count as little as can still be run on them; and what is destroyed of a
shape's room counts by how much of all its room in the cluster that is:

    loss = sum over shapes of how often it is asked for * (destroyed here / usable in the whole cluster,
    squared)

whose sum over the cluster, frequency / usable, is the part of its room that the next gang takes. So cards
that few shapes can use, and shapes that few cards can serve, are dealt with alike. Neither measure knows of
the order of nodes or of the future.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.copy_on_write_rows import Floats32
from hopyard.scheduler.placement.node_table import GPU_NOT_ALLOWED, Bools, Ints, NodeTable, matches
from hopyard.scheduler.placement.workload_mix import WorkloadMix

Floats = NDArray[np.float64]
MAX_TYPICAL_SHAPES = 64  # shapes that are looked at; others count as the one that is most like them
# the weights of a kind of node are whole numbers of at most about 2 to the power of this in all: sums are
# exact
WEIGHT_TOTAL_BITS = 30
UNLIMITED_GPU_RATIO = float(1 << 40)
# a thousandth of a card more or less makes shapes as different as that many times the CPU
GPU_DISTANCE_WEIGHT = 1000.0
MIN_AMOUNT = 1e-6  # a request of nothing always fits
ROUNDING_TOLERANCE = 1 + 1e-9  # room for exactly n replicas is room for n, whatever division makes of it

# what a typical replica asks: thousandths of cores, bytes, cards, thousandths of each card
TypicalShape = tuple[int, int, int, int]
ShapeDemand = tuple[TypicalShape, Bools, int]


class FragmentationValue:
    """The tables for one ground and one mix; true as long as the same kinds of nodes are open
    (`is_only_open_of_kind`). Column m of every array belongs to typical shape m; row k to the kind of node k.

    fluid: the measure above; else the published one. kind[i]: the kind of node i. whole_card[m]: what shape m
    can use of a whole card. has_cards[i]: 1 if node i has any, else 0.
    """

    def __init__(self, node_table: NodeTable, mix: WorkloadMix, *, fluid: bool) -> None:
        self._fluid = fluid
        names = tuple(sorted({name for _, where, _ in mix.shape_counts for name, _ in where.labels}))
        self.node_kind, examples = node_table.kinds(names)
        self._kind_count = len(examples)
        there = np.bincount(self.node_kind[node_table.open], minlength=self._kind_count)
        self._demands = [ask for ask in _demands(node_table, mix, examples) if there[ask[1]].any()]
        self._weights_by_room = fluid and bool(self._demands)
        if not self._demands:
            self._demands = [ask for ask in _default_demands(node_table, examples) if there[ask[1]].any()]
        columns, place = _typical_shapes(self._demands)
        self._typical_index: Ints = np.array([place[column] for column, _, _ in self._demands], np.int64)
        self._allowed_kinds: Bools = np.array([allowed for _, allowed, _ in self._demands], np.bool_).reshape(
            len(self._demands), self._kind_count
        )
        self._demand_counts: Floats = np.array([count for _, _, count in self._demands], np.float64)
        cpu, memory, cards, milli = (np.array([c[i] for c in columns], np.float64) for i in range(4))
        self._min_gpu_milli = cards * milli
        with np.errstate(divide="ignore"):
            self._gpu_per_cpu = np.where(
                cpu > 0, self._min_gpu_milli / cpu * ROUNDING_TOLERANCE, UNLIMITED_GPU_RATIO
            )
            self._gpu_per_byte = np.where(
                memory > 0, self._min_gpu_milli / memory * ROUNDING_TOLERANCE, UNLIMITED_GPU_RATIO
            )
        self._usable_by_free_milli = self._usable_table(cards, milli)
        self.usable_of_full_gpu = self._usable_by_free_milli[WHOLE_GPU]
        self.has_gpus: Floats = np.where((node_table.gpu_model >= 0).any(axis=1), 1.0, 0.0)
        usable = self.bounded_usable(
            self.usable_on_gpus(node_table.gpu[examples]),
            self.gpu_limits(node_table.cpu[examples], node_table.memory[examples]),
        )
        self.empty_weights = self.weights(usable, examples, there)

    def is_only_open_of_kind(self, node_table: NodeTable, row: int) -> bool:
        """Whether no other node of the kind of this one is open.
        With it comes or goes what only such nodes can serve."""
        return not np.any(
            (self.node_kind == self.node_kind[row])
            & node_table.open
            & (np.arange(len(self.node_kind)) != row)
        )

    def _usable_table(self, cards: Floats, milli: Floats) -> Floats32:
        """[r, m]: what of r thousandths of one card shape m can use."""
        left = np.arange(WHOLE_GPU + 1)[:, None]
        shares = left // milli * milli if self._fluid else np.where(left >= milli, left, 0)
        return np.where(cards > 1, np.where(left == WHOLE_GPU, WHOLE_GPU, 0), shares).astype(np.float32)

    def weights(self, usable: Floats, rows: Ints, node_counts: Ints) -> Floats:
        """[k, m]: what a thousandth of a card that shape m can use counts on nodes of kind k, where it can
        use `usable[i, m]` of each of `times[i]` open nodes that are as node `rows[i]`: powers of 2, so that
        they seldom change and that nothing is rounded otherwise where a kind of node that no shape can use is
        added. Nodes that are not open change nothing for those that are."""
        kinds, shapes = self.node_kind[rows], usable.shape[1]
        entry = kinds[:, None] * shapes + np.arange(shapes)
        supply = np.bincount(
            entry.ravel(), (usable * node_counts[:, None]).ravel(), self._kind_count * shapes
        ).astype(np.float64)
        supply = supply.reshape(self._kind_count, shapes)
        found = np.zeros_like(supply)
        room = np.ones(len(self._demand_counts))
        if self._weights_by_room:
            room = np.maximum(
                (supply.T[self._typical_index] * self._allowed_kinds).sum(axis=1),
                self._min_gpu_milli[self._typical_index],
            )
        np.add.at(
            found.T, self._typical_index, self._allowed_kinds * (self._demand_counts / room**2)[:, None]
        )
        of_kind = found.sum(axis=1)
        most = of_kind[np.bincount(kinds, node_counts, self._kind_count) > 0].max(initial=0.0) or of_kind.max(
            initial=0.0
        )
        if most:
            scale = WEIGHT_TOTAL_BITS - np.ceil(np.log2(most))
            with np.errstate(divide="ignore"):
                found = (
                    np.exp2(np.rint(np.log2(found)) + scale)
                    if self._fluid
                    else np.rint(np.ldexp(found, int(scale)))
                )
            found[found < 1] = 0.0
        return found

    def usable_on_gpus(self, gpu: Ints) -> Floats32:
        """[i, m]: what shape m can use of these cards (row i: those of one node), whatever else the node has
        left."""
        left = np.minimum(np.maximum(gpu, 0), WHOLE_GPU)
        found = np.zeros((len(left), self._usable_by_free_milli.shape[1]), np.float32)
        for column in range(left.shape[1]):
            found += self._usable_by_free_milli.take(left[:, column], 0)
        return found

    def usable_on_node(self, gpu: Ints) -> Floats32:
        """`on_cards` of one node."""
        found: Floats32 = np.add.reduce(
            self._usable_by_free_milli.take(np.minimum(np.maximum(gpu, 0), WHOLE_GPU), 0)
        )
        return found

    def usable_change(self, before: Ints | int, after: Ints | int) -> Floats32:
        """[i, m]: how `on_cards` changes when one card goes from `before[i]` thousandths to `after[i]`."""
        found: Floats32 = self._usable_by_free_milli.take(after, 0) - self._usable_by_free_milli.take(
            before, 0
        )
        return found

    def gpu_limits(self, cpu: Ints, memory: Ints) -> Floats:
        """[i, m]: for how much of cards so much CPU and memory is enough, at the ratio of shape m."""
        found: Floats = np.multiply.outer(cpu + MIN_AMOUNT, self._gpu_per_cpu)
        np.minimum(found, np.multiply.outer(memory + MIN_AMOUNT, self._gpu_per_byte), out=found)
        return found

    def gpu_limits_of_node(self, cpu: int, memory: int) -> Floats:
        """`limits` of one node."""
        found: Floats = np.multiply(self._gpu_per_cpu, cpu + MIN_AMOUNT)
        return np.minimum(found, self._gpu_per_byte * (memory + MIN_AMOUNT), out=found)

    def bounded_usable(self, usable: Floats32, limit: Floats) -> Floats:
        """What is usable, given what is on the cards, and what CPU and memory are enough for.
        Less than one replica is nothing."""
        if self._fluid:
            found: Floats = np.minimum(usable.astype(np.float64), limit)
            np.floor(found, out=found)
            found *= found >= self._min_gpu_milli
            return found
        fits: Floats = np.multiply(usable, limit >= self._min_gpu_milli, dtype=np.float64)
        return fits


def _demands(node_table: NodeTable, mix: WorkloadMix, examples: Ints) -> Iterator[ShapeDemand]:
    """Each way of asking with the column that it is on such cards, the kinds of nodes that it may use, and
    how often."""
    nodes = [node_table.nodes[row] for row in examples.tolist()]
    there = {
        where: np.array([matches(where, node) for node in nodes], np.bool_)
        for where in {where for _, where, _ in mix.shape_counts}
    }
    usable: dict[tuple[object, ...], list[tuple[int, Bools]]] = {}
    for resources, where, count in mix.shape_counts:
        key = resources.gpu_models, resources.gpu_milli, resources.gpu_memory_bytes
        if key not in usable:
            needs = node_table.gpu_needs(resources, frozenset())
            of_cards = needs[node_table.gpu_model[examples]]
            usable[key] = [
                (milli, (of_cards == milli).any(axis=1))
                for milli in sorted(set(needs.tolist()) - {GPU_NOT_ALLOWED})
            ]
        for milli, with_such in usable[key]:
            allowed = there[where] & with_such
            if allowed.any():
                yield (
                    (resources.cpu_milli, resources.memory_bytes, max(resources.gpus, 1), milli),
                    allowed,
                    count,
                )


def _typical_shapes(asks: Sequence[ShapeDemand]) -> tuple[list[TypicalShape], dict[TypicalShape, int]]:
    """The shapes that most of the GPUs are asked for with, and of every shape which of these it counts as."""
    gpu: dict[TypicalShape, int] = {}
    for column, _, count in asks:
        gpu[column] = gpu.get(column, 0) + count * column[2] * column[3]
    chosen = sorted(gpu, key=lambda column: (-gpu[column], column))[:MAX_TYPICAL_SHAPES]
    if not chosen:
        return [], {}
    every = list(gpu)
    asked, rest = _log_features(every)
    of_chosen = [every.index(column) for column in chosen]
    unlike = np.abs(asked[:, None] - asked[of_chosen]) * GPU_DISTANCE_WEIGHT + np.abs(
        rest[:, None] - rest[of_chosen]
    ).sum(axis=2)
    return chosen, dict(zip(every, unlike.argmin(axis=1).tolist(), strict=True))


def _log_features(columns: Sequence[TypicalShape]) -> tuple[Floats, Floats]:
    """Of the GPUs that each asks for, and of the rest."""
    array = np.array(columns, np.float64).reshape(-1, 4)
    found: Floats = np.log2(array[:, :2] + 1)
    return array[:, 2] * array[:, 3], found


def _default_demands(node_table: NodeTable, examples: Ints) -> Iterator[ShapeDemand]:
    """Where nobody has asked for anything yet: one card with its even part of a node, and a whole node, of
    each kind."""
    cards = np.count_nonzero(node_table.gpu_model[examples] >= 0, axis=1).tolist()
    for kind, (row, count) in enumerate(zip(examples.tolist(), cards, strict=True)):
        if count:
            alone = np.arange(len(examples)) == kind
            cpu, memory = int(node_table.cpu[row]), int(node_table.memory[row])
            yield (cpu // count, memory // count, 1, WHOLE_GPU), alone, 1
            yield (cpu, memory, count, WHOLE_GPU), alone, 1

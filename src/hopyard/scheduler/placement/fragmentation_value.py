"""Values the free resources of a node by what typical gangs can still use.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX
ATC'23): the best node for a gang is where GPU capacity that typical shapes can no longer use grows least. In
the paper, all that is left of a GPU is usable for a shape if one such replica fits the node. A shape is
weighted by how often it is requested. The fluid measure, which is ours, differs twice:

    usable(node, shape) = min(GPUs cut into whole replicas, GPU for the node's free CPU and memory at the
    shape's ratio)

so that GPUs of a node with little free CPU count only as much as can still run on them. And the capacity of a
shape that is destroyed is weighted by its part of all capacity for this shape in the cluster:

    loss = sum over shapes of how often it is requested * (destroyed here / usable in the whole cluster,
    squared)

Its sum over the cluster, frequency / usable, is the part of this capacity that the next gang takes. So GPUs
that few shapes can use, and shapes that few GPUs can serve, are treated alike. Neither measure knows the
order of nodes or the future.
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
MAX_TYPICAL_SHAPES = 64  # shapes that are evaluated; each other shape counts as the most similar one
# the weights of a node kind are whole numbers that add up to at most about 2 to the power of this, so that
# sums are exact
WEIGHT_TOTAL_BITS = 30
UNLIMITED_GPU_RATIO = float(1 << 40)
# distance of a thousandth of a GPU, relative to a doubling of CPU or memory
GPU_DISTANCE_WEIGHT = 1000.0
MIN_AMOUNT = 1e-6  # an empty request always fits
# capacity for exactly n replicas counts as n in spite of rounding in the division
ROUNDING_TOLERANCE = 1 + 1e-9

# request of a typical replica: thousandths of cores, bytes, GPUs, thousandths of each GPU
TypicalShape = tuple[int, int, int, int]
ShapeDemand = tuple[TypicalShape, Bools, int]


class FragmentationValue:
    """The tables for one node table and one workload mix. Valid as long as the same kinds of nodes are open
    (`is_only_open_of_kind`). Column m of every array belongs to typical shape m; row k to node kind k.

    fluid: the measure above; else the published one. node_kind[i]: the kind of node i. usable_of_full_gpu[m]:
    what shape m can use of a whole GPU. has_gpus[i]: 1 if node i has any GPU, else 0.
    """

    def __init__(self, node_table: NodeTable, mix: WorkloadMix, *, fluid: bool) -> None:
        self._fluid = fluid
        names = tuple(sorted({name for _, where, _ in mix.shape_counts for name, _ in where.labels}))
        self.node_kind, examples = node_table.kinds(names)
        self._kind_count = len(examples)
        open_counts = np.bincount(self.node_kind[node_table.open], minlength=self._kind_count)
        self._demands = [
            demand for demand in _demands(node_table, mix, examples) if open_counts[demand[1]].any()
        ]
        self._weights_by_room = fluid and bool(self._demands)
        if not self._demands:
            self._demands = [
                demand for demand in _default_demands(node_table, examples) if open_counts[demand[1]].any()
            ]
        columns, index_of = _typical_shapes(self._demands)
        self._typical_index: Ints = np.array([index_of[column] for column, _, _ in self._demands], np.int64)
        self._allowed_kinds: Bools = np.array([allowed for _, allowed, _ in self._demands], np.bool_).reshape(
            len(self._demands), self._kind_count
        )
        self._demand_counts: Floats = np.array([count for _, _, count in self._demands], np.float64)
        cpu, memory, gpus, milli = (
            np.array([shape[field] for shape in columns], np.float64) for field in range(4)
        )
        self._min_gpu_milli = gpus * milli
        with np.errstate(divide="ignore"):
            self._gpu_per_cpu = np.where(
                cpu > 0, self._min_gpu_milli / cpu * ROUNDING_TOLERANCE, UNLIMITED_GPU_RATIO
            )
            self._gpu_per_byte = np.where(
                memory > 0, self._min_gpu_milli / memory * ROUNDING_TOLERANCE, UNLIMITED_GPU_RATIO
            )
        self._usable_by_free_milli = self._usable_table(gpus, milli)
        self.usable_of_full_gpu = self._usable_by_free_milli[WHOLE_GPU]
        self.has_gpus: Floats = np.where((node_table.gpu_model >= 0).any(axis=1), 1.0, 0.0)
        usable = self.bounded_usable(
            self.usable_on_gpus(node_table.gpu[examples]),
            self.gpu_limits(node_table.cpu[examples], node_table.memory[examples]),
        )
        self.empty_weights = self.weights(usable, examples, open_counts)

    def is_only_open_of_kind(self, node_table: NodeTable, row: int) -> bool:
        """Returns whether no other node of this node's kind is open. If so, the demands that only this kind
        can serve depend on this node."""
        return not np.any(
            (self.node_kind == self.node_kind[row])
            & node_table.open
            & (np.arange(len(self.node_kind)) != row)
        )

    def _usable_table(self, cards: Floats, milli: Floats) -> Floats32:
        """[r, m]: what shape m can use of r thousandths of one GPU."""
        free_milli = np.arange(WHOLE_GPU + 1)[:, None]
        shares = free_milli // milli * milli if self._fluid else np.where(free_milli >= milli, free_milli, 0)
        return np.where(cards > 1, np.where(free_milli == WHOLE_GPU, WHOLE_GPU, 0), shares).astype(np.float32)

    def weights(self, usable: Floats, rows: Ints, node_counts: Ints) -> Floats:
        """Returns [k, m]: the weight of a thousandth of a GPU that shape m can use on nodes of kind k. Shape
        m can use `usable[i, m]` of each of `node_counts[i]` open nodes that are equal to node `rows[i]`.
        Weights are powers of 2, so that they seldom change, and rounding does not change if a node kind is
        added that no shape can use. Closed nodes do not affect the weights of open ones."""
        kinds, shapes = self.node_kind[rows], usable.shape[1]
        index = kinds[:, None] * shapes + np.arange(shapes)
        supply = np.bincount(
            index.ravel(), (usable * node_counts[:, None]).ravel(), self._kind_count * shapes
        ).astype(np.float64)
        supply = supply.reshape(self._kind_count, shapes)
        weights = np.zeros_like(supply)
        capacity = np.ones(len(self._demand_counts))
        if self._weights_by_room:
            capacity = np.maximum(
                (supply.T[self._typical_index] * self._allowed_kinds).sum(axis=1),
                self._min_gpu_milli[self._typical_index],
            )
        np.add.at(
            weights.T, self._typical_index, self._allowed_kinds * (self._demand_counts / capacity**2)[:, None]
        )
        kind_totals = weights.sum(axis=1)
        maximum = kind_totals[np.bincount(kinds, node_counts, self._kind_count) > 0].max(
            initial=0.0
        ) or kind_totals.max(initial=0.0)
        if maximum:
            scale = WEIGHT_TOTAL_BITS - np.ceil(np.log2(maximum))
            with np.errstate(divide="ignore"):
                weights = (
                    np.exp2(np.rint(np.log2(weights)) + scale)
                    if self._fluid
                    else np.rint(np.ldexp(weights, int(scale)))
                )
            weights[weights < 1] = 0.0
        return weights

    def usable_on_gpus(self, gpu: Ints) -> Floats32:
        """[i, m]: what shape m can use of these GPUs (row i: the GPUs of one node), whatever else the node
        has left."""
        free_milli = np.minimum(np.maximum(gpu, 0), WHOLE_GPU)
        usable = np.zeros((len(free_milli), self._usable_by_free_milli.shape[1]), np.float32)
        for column in range(free_milli.shape[1]):
            usable += self._usable_by_free_milli.take(free_milli[:, column], 0)
        return usable

    def usable_on_node(self, gpu: Ints) -> Floats32:
        """Computes `usable_on_gpus` for one node."""
        usable: Floats32 = np.add.reduce(
            self._usable_by_free_milli.take(np.minimum(np.maximum(gpu, 0), WHOLE_GPU), 0)
        )
        return usable

    def usable_change(self, before: Ints | int, after: Ints | int) -> Floats32:
        """[i, m]: how `usable_on_gpus` changes when one GPU changes from `before[i]` to `after[i]` free
        thousandths."""
        change: Floats32 = self._usable_by_free_milli.take(after, 0) - self._usable_by_free_milli.take(
            before, 0
        )
        return change

    def gpu_limits(self, cpu: Ints, memory: Ints) -> Floats:
        """[i, m]: the GPU amount for which this CPU and memory suffice, at the ratio of shape m."""
        limits: Floats = np.multiply.outer(cpu + MIN_AMOUNT, self._gpu_per_cpu)
        np.minimum(limits, np.multiply.outer(memory + MIN_AMOUNT, self._gpu_per_byte), out=limits)
        return limits

    def gpu_limits_of_node(self, cpu: int, memory: int) -> Floats:
        """Computes `gpu_limits` for one node."""
        limits: Floats = np.multiply(self._gpu_per_cpu, cpu + MIN_AMOUNT)
        return np.minimum(limits, self._gpu_per_byte * (memory + MIN_AMOUNT), out=limits)

    def bounded_usable(self, usable: Floats32, limit: Floats) -> Floats:
        """Returns what is usable within the limits of CPU and memory. Less than one replica counts as 0."""
        if self._fluid:
            bounded: Floats = np.minimum(usable.astype(np.float64), limit)
            np.floor(bounded, out=bounded)
            bounded *= bounded >= self._min_gpu_milli
            return bounded
        usable_if_fits: Floats = np.multiply(usable, limit >= self._min_gpu_milli, dtype=np.float64)
        return usable_if_fits


def _demands(node_table: NodeTable, mix: WorkloadMix, examples: Ints) -> Iterator[ShapeDemand]:
    """Yields each typical shape with the node kinds that it may use, and how often it is requested."""
    nodes = [node_table.nodes[row] for row in examples.tolist()]
    matching = {
        where: np.array([matches(where, node) for node in nodes], np.bool_)
        for where in {where for _, where, _ in mix.shape_counts}
    }
    usable: dict[tuple[object, ...], list[tuple[int, Bools]]] = {}
    for resources, where, count in mix.shape_counts:
        key = resources.gpu_models, resources.gpu_milli, resources.gpu_memory_bytes
        if key not in usable:
            needs = node_table.gpu_needs(resources, frozenset())
            needs_on_kinds = needs[node_table.gpu_model[examples]]
            usable[key] = [
                (milli, (needs_on_kinds == milli).any(axis=1))
                for milli in sorted(set(needs.tolist()) - {GPU_NOT_ALLOWED})
            ]
        for milli, has_such_gpu in usable[key]:
            allowed = matching[where] & has_such_gpu
            if allowed.any():
                yield (
                    (resources.cpu_milli, resources.memory_bytes, max(resources.gpus, 1), milli),
                    allowed,
                    count,
                )


def _typical_shapes(demands: Sequence[ShapeDemand]) -> tuple[list[TypicalShape], dict[TypicalShape, int]]:
    """Returns the shapes with the largest total GPU request, and for every shape the index of the typical
    shape as which it counts."""
    gpu_totals: dict[TypicalShape, int] = {}
    for shape, _, count in demands:
        gpu_totals[shape] = gpu_totals.get(shape, 0) + count * shape[2] * shape[3]
    chosen = sorted(gpu_totals, key=lambda shape: (-gpu_totals[shape], shape))[:MAX_TYPICAL_SHAPES]
    if not chosen:
        return [], {}
    shapes = list(gpu_totals)
    gpu_milli, features = _log_features(shapes)
    chosen_indices = [shapes.index(shape) for shape in chosen]
    distance = np.abs(gpu_milli[:, None] - gpu_milli[chosen_indices]) * GPU_DISTANCE_WEIGHT + np.abs(
        features[:, None] - features[chosen_indices]
    ).sum(axis=2)
    return chosen, dict(zip(shapes, distance.argmin(axis=1).tolist(), strict=True))


def _log_features(columns: Sequence[TypicalShape]) -> tuple[Floats, Floats]:
    """Returns the requested GPU of each shape, and the logarithms of the other resources."""
    array = np.array(columns, np.float64).reshape(-1, 4)
    features: Floats = np.log2(array[:, :2] + 1)
    return array[:, 2] * array[:, 3], features


def _default_demands(node_table: NodeTable, examples: Ints) -> Iterator[ShapeDemand]:
    """Yields demands for a mix without requests: for each kind, one GPU with its even part of a node, and a
    whole node."""
    gpu_counts = np.count_nonzero(node_table.gpu_model[examples] >= 0, axis=1).tolist()
    for kind, (row, count) in enumerate(zip(examples.tolist(), gpu_counts, strict=True)):
        if count:
            this_kind = np.arange(len(examples)) == kind
            cpu, memory = int(node_table.cpu[row]), int(node_table.memory[row])
            yield (cpu // count, memory // count, 1, WHOLE_GPU), this_kind, 1
            yield (cpu, memory, count, WHOLE_GPU), this_kind, 1

"""What is left of a node is worth what usual gangs can still do with it.

After "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC'23): the
best place for a gang is where the GPUs that the usual shapes of gangs cannot use any more grow least. There, what is left of
a card is usable for a shape if one such replica fits the node. `Worth.fluid` asks instead how much of it replicas of that
shape alone could use, and loses nothing to another resource that runs short long before the cards are full:

    usable(node, shape) = min(cards cut up into replicas, GPU for the node's free CPU and memory at the shape's ratio)

and a shape counts the more the less of the cluster could ever serve it: weight = how often it is asked for / usable GPU of
the whole, empty cluster for it. Both are the same for every node order, and know of no future.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.ground import NEVER, Bools, Ground, Ints, matches
from hopyard.scheduler.placement.mix import Mix

Floats = NDArray[np.float64]
TYPICAL = 32  # shapes that are looked at: the most frequent
TOTAL = 1 << 20  # weights are whole numbers of about this sum, so that sums are exact in any order
PLENTY = float(1 << 40)
ROUNDING = 1e-6  # room for exactly n replicas is room for n, whatever division makes of it

Column = tuple[int, int, int, int]  # what a typical replica asks: thousandths of cores, bytes, cards, thousandths of each card
Asked = tuple[Column, Bools, int]


class Worth:
    """The tables for one ground and one mix. Column m of every array belongs to typical shape m.

    fluid: the measure above; else the published one, in which all shapes count by how often they are asked for alone.
    whole_card[m]: what it can use of a whole one.
    kind[i]: the kind of node i, of which `weight[kind, m]` is what a thousandth of a card that shape m can use counts there.
    """

    def __init__(self, ground: Ground, mix: Mix, *, fluid: bool) -> None:
        self.ground, self.mix, self._fluid = ground, mix, fluid
        names = tuple(sorted({name for _, where, _ in mix.asks for name, _ in where.labels}))
        self.kind, self._examples = ground.kinds(names)
        asks = list(_asks(ground, mix, self._examples))
        columns = _most_frequent(asks)
        cpu, memory, cards, milli = (np.array([c[i] for c in columns], np.float64) for i in range(4))
        self._least = cards * milli
        with np.errstate(divide="ignore"):
            self._per_cpu = np.where(cpu > 0, self._least / cpu, PLENTY)
            self._per_byte = np.where(memory > 0, self._least / memory, PLENTY)
        self._cut = self._cuts(cards, milli)
        self.whole_card = self._cut[WHOLE_GPU]
        self.weight = self._weights(asks, {column: m for m, column in enumerate(columns)})

    def _cuts(self, cards: Floats, milli: Floats) -> Floats:
        """[r, m]: what of r thousandths of one card shape m can use."""
        left = np.arange(WHOLE_GPU + 1)[:, None]
        shares = left // milli * milli if self._fluid else np.where(left >= milli, left, 0)
        return np.where(cards > 1, np.where(left == WHOLE_GPU, WHOLE_GPU, 0), shares).astype(np.float64)

    def _weights(self, asks: Sequence[Asked], place: Mapping[Column, int]) -> Floats:
        ground, rows = self.ground, self._examples
        nodes = np.bincount(self.kind, minlength=len(rows))
        usable = self.bounded(self.on_cards(ground.gpu[rows]), self.limits(ground.cpu[rows], ground.memory[rows]))
        found = np.zeros((len(rows), len(place)))
        for column, allowed, count in asks:
            m = place.get(column)
            if m is not None:
                supply = float((usable[:, m] * nodes)[allowed].sum()) if self._fluid else 1.0
                found[allowed, m] += count / max(supply, self._least[m])
        most = found.sum(axis=1).max(initial=0.0)
        scaled: Floats = np.rint(found * (TOTAL / most)) if most else found
        return scaled

    def on_cards(self, gpu: Ints) -> Floats:
        """[i, m]: what shape m can use of these cards (row i: those of one node), whatever else the node has left."""
        found: Floats = self._cut[np.clip(gpu, 0, WHOLE_GPU)].sum(axis=1)
        return found

    def change(self, before: Ints, after: Ints) -> Floats:
        """[i, m]: how `on_cards` changes when one card goes from `before[i]` thousandths to `after[i]`."""
        found: Floats = self._cut[after] - self._cut[before]
        return found

    def limits(self, cpu: Ints, memory: Ints) -> Floats:
        """[i, m]: for how much of cards so much CPU and memory is enough, at the ratio of shape m."""
        found: Floats = np.minimum(cpu[:, None] * self._per_cpu, memory[:, None] * self._per_byte)
        found += ROUNDING
        return found

    def bounded(self, on_cards: Floats, limit: Floats) -> Floats:
        """What is usable, given what is on the cards, and what CPU and memory are enough for. Less than one replica is nothing."""
        found = np.minimum(on_cards, limit) if self._fluid else np.where(limit >= self._least, on_cards, 0.0)
        found[found < self._least] = 0.0
        np.floor(found, out=found)
        return found

    def total(self, usable: Floats, rows: Ints) -> Floats:
        """What these nodes are worth: exact whole numbers."""
        found: Floats = (usable @ self.weight.T)[np.arange(len(rows)), self.kind[rows]]
        return found


def _asks(ground: Ground, mix: Mix, examples: Ints) -> Iterator[Asked]:
    """Each way of asking with the column that it is on such cards, the kinds of nodes that it may use, and how often."""
    for resources, where, count in mix.asks:
        if resources.gpus == 0 and not resources.shares_gpu:
            continue
        needs = ground.needs(resources, frozenset())
        there = np.array([matches(where, ground.nodes[row]) for row in examples.tolist()], np.bool_)
        for milli in sorted(set(needs.tolist()) - {NEVER}):
            allowed = there & (needs[ground.card[examples]] == milli).any(axis=1)
            column = (resources.cpu_milli, resources.memory_bytes, max(resources.gpus, 1), milli)
            if allowed.any():
                yield column, allowed, count


def _most_frequent(asks: Sequence[Asked]) -> list[Column]:
    count: dict[Column, int] = {}
    for column, _, number in asks:
        count[column] = count.get(column, 0) + number
    return sorted(count, key=lambda column: (-count[column], column))[:TYPICAL]

"""Scores nodes by what a replica would destroy there of what usual gangs could still use."""

from __future__ import annotations

import numpy as np

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.alike import Alike
from hopyard.scheduler.placement.fitting import Fitting
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Bools, Ints
from hopyard.scheduler.placement.scores import NO_COLUMN, NOT_HERE, Columns, Values
from hopyard.scheduler.placement.worth import Floats, Halves, Worth

BESIDE_IDLE_CARDS = 0.5  # who needs no card goes to a node without any where it destroys as little elsewhere


class Gradient:
    """Follows one Free: what every node is worth now, kept up as nodes change. Scores are whole numbers below 2^53, and a half.

    weights: what shapes count; as on empty nodes until they are weighed.
    """

    def __init__(self, worth: Worth, free: Free, weights: Floats | None = None) -> None:
        self._worth, self.weights, self._shared = worth, worth.empty if weights is None else weights, False
        self._alike = Alike(worth.kind)
        rows, like, _ = self._alike.examples(free)
        on_cards = worth.on_cards(free.gpu[rows])
        self._on_cards: Halves = on_cards.astype(np.float32)[like]
        self._value = self._total(worth.bounded(on_cards, worth.limits(free.cpu[rows], free.memory[rows])), rows)[like]

    def copy(self) -> Gradient:
        found = object.__new__(Gradient)
        found._worth, found.weights, found._on_cards, found._value = self._worth, self.weights, self._on_cards, self._value
        found._alike, found._shared, self._shared = self._alike.copy(), True, True
        return found

    def weigh(self, free: Free) -> bool:
        """Let shapes count by how much room there is for them now; whether scores are others than before."""
        worth = self._worth
        rows, like, times = self._alike.examples(free)
        usable = worth.bounded(self._on_cards[rows], worth.limits(free.cpu[rows], free.memory[rows]))
        weights = worth.weights(usable, rows, times)
        if np.array_equal(weights, self.weights):
            return False
        self._own()
        self.weights = weights
        self._value = self._total(usable, rows)[like]
        return True

    def refresh(self, free: Free, rows: Ints) -> None:
        """These nodes changed."""
        self._own()
        self._alike.moved(rows.tolist())
        worth = self._worth
        on_cards = worth.on_cards(free.gpu[rows])
        self._on_cards[rows] = on_cards
        self._value[rows] = self._total(worth.bounded(on_cards, worth.limits(free.cpu[rows], free.memory[rows])), rows)

    def took(self, free: Free, row: int, column: int, fitting: Fitting, destroyed: float) -> None:
        """One replica was put on a node, whose score was `destroyed`, on that card if it shares one."""
        self._own()
        self._alike.moved((row,))
        self._value[row] -= destroyed // 1
        if column >= 0:
            left = free.gpu.item(row, column)
            self._on_cards[row] += self._worth.change(left + fitting.milli(row, column), left)
        elif fitting.gpus:
            self._on_cards[row] -= fitting.gpus * self._worth.whole_card

    def _own(self) -> None:
        if self._shared:
            self._on_cards, self._value, self._shared = self._on_cards.copy(), self._value.copy(), False

    def _total(self, usable: Floats, rows: Ints) -> Floats:
        """What these nodes are worth: exact, whatever the order of the sum."""
        found: Floats = np.einsum("ij,ij->i", usable, self.weights[self._worth.kind[rows]])
        return found

    def everywhere(self, free: Free, fitting: Fitting) -> tuple[Values, Columns]:
        """The scores of all nodes."""
        rows, like, _ = self._alike.examples(free)
        values, columns = self._score(free, fitting, rows, np.ones(len(rows), np.bool_))
        return np.where(fitting.allowed, values[like], NOT_HERE), columns[like]

    def __call__(self, free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
        """The scores of these nodes, NOT_HERE where no replica fits, and which card it would share there."""
        return self._score(free, fitting, rows, fitting.allowed[rows])

    def _score(self, free: Free, fitting: Fitting, rows: Ints, fits: Bools) -> tuple[Values, Columns]:
        worth = self._worth
        cpu, memory = free.cpu[rows] - fitting.cpu, free.memory[rows] - fitting.memory
        if fitting.cpu:
            fits &= cpu >= 0
        if fitting.memory:
            fits &= memory >= 0
        for name, amount in fitting.extras:
            fits &= free.extra(name, rows) >= amount
        if fitting.needs is not None and not fitting.gpus:
            return self._shared_card(free, fitting, rows, fits, cpu, memory)
        if fitting.gpus:
            fits &= np.add.reduce(free.gpu[rows] >= fitting.needed(rows), axis=1) >= fitting.gpus
        values, columns = np.full(len(rows), NOT_HERE), np.full(len(rows), NO_COLUMN, np.int8)
        chosen = np.flatnonzero(fits)
        if len(chosen):
            nodes = rows[chosen]
            on_cards = self._on_cards[nodes]
            if fitting.gpus:
                on_cards -= fitting.gpus * worth.whole_card
            left = self._total(worth.bounded(on_cards, worth.limits(cpu[chosen], memory[chosen])), nodes)
            destroyed = np.subtract(self._value[nodes], left)
            if fitting.needs is None:
                destroyed = destroyed + BESIDE_IDLE_CARDS * worth.has_cards[nodes]
            values[chosen] = destroyed
        return values, columns

    def _shared_card(
        self, free: Free, fitting: Fitting, rows: Ints, fits: Bools, cpu: Ints, memory: Ints
    ) -> tuple[Values, Columns]:
        """The best card of each node to share. Of idle cards of a node one is looked at."""
        worth, gpu, needed = self._worth, free.gpu[rows], fitting.needed(rows)
        enough = gpu >= needed
        enough &= fits[:, None]
        if fitting.need is not None and len(rows) > 8:
            idle = gpu == WHOLE_GPU
            enough &= ~idle | (np.cumsum(idle, axis=1) == 1)
        node, card = np.nonzero(enough)
        found = np.full(gpu.shape, NOT_HERE)
        if len(node):
            before = gpu[node, card]
            after = before - (needed if isinstance(needed, int) else needed[node, card])
            nodes = rows[node]
            on_cards = self._on_cards[nodes]
            on_cards += worth.change(before, after)
            left = self._total(worth.bounded(on_cards, worth.limits(cpu[node], memory[node])), nodes)
            found[node, card] = np.subtract(self._value[nodes], left)
        best = found.argmin(axis=1)
        return found[np.arange(len(rows)), best], best.astype(np.int8)

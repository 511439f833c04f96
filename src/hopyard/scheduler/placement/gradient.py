"""Scores nodes by what a replica would destroy there of what usual gangs could still use."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.alike import Alike
from hopyard.scheduler.placement.fitting import Fitting
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Bools, Ints
from hopyard.scheduler.placement.scores import NO_COLUMN, NOT_HERE, Columns, Values
from hopyard.scheduler.placement.table import Table
from hopyard.scheduler.placement.worth import Floats, Worth

ONE_BY_ONE = 4  # so many nodes are looked at one after another: arrays of them cost more than they save
BESIDE_IDLE_CARDS = 0.5  # who needs no card goes to a node without any where it destroys as little elsewhere


class Gradient:
    """Follows one Free: what every node is worth now, kept up as nodes change.
    Scores are whole numbers below 2^53, and a half.

    weights: what shapes count; as on empty nodes until they are weighed.
    """

    def __init__(self, worth: Worth, free: Free, weights: Floats | None = None) -> None:
        self._worth, self.weights = worth, worth.empty if weights is None else weights
        self._alike = Alike(worth.kind)
        rows, like, _ = self._alike.examples(free)
        on_cards = worth.on_cards(free.gpu[rows])
        self._on_cards = Table(on_cards[like])
        self._value = self._total(
            worth.bounded(on_cards, worth.limits(free.cpu[rows], free.memory[rows])), rows
        )[like]

    def copy(self) -> Gradient:
        found = object.__new__(Gradient)
        found._worth, found.weights, found._alike = self._worth, self.weights, self._alike.copy()
        found._on_cards, found._value = self._on_cards.copy(), self._value.copy()
        return found

    def weigh(self, free: Free) -> bool:
        """Let shapes count by how much room there is for them now; whether scores are others than before."""
        worth = self._worth
        rows, like, times = self._alike.examples(free)
        usable = worth.bounded(self._on_cards.take(rows), worth.limits(free.cpu[rows], free.memory[rows]))
        weights = worth.weights(usable, rows, times)
        if np.array_equal(weights, self.weights):
            return False
        self.weights = weights
        self._value = self._total(usable, rows)[like]
        return True

    def refresh(self, free: Free, rows: Collection[int]) -> None:
        """These nodes changed."""
        self._alike.moved(rows)
        if len(rows) <= ONE_BY_ONE:
            for row in rows:
                self._look_at(free, row)
        else:
            self._look_at_all(free, np.fromiter(rows, np.int64, len(rows)))

    def _look_at_all(self, free: Free, rows: Ints) -> None:
        worth = self._worth
        on_cards = worth.on_cards(free.gpu.take(rows, 0))
        self._on_cards.put(rows, on_cards)
        self._value[rows] = self._total(
            worth.bounded(on_cards, worth.limits(free.cpu[rows], free.memory[rows])), rows
        )

    def _look_at(self, free: Free, row: int) -> None:
        """One node: the same with far fewer steps."""
        worth = self._worth
        on_cards = worth.on_cards_of(free.gpu[row])
        self._on_cards.put_one(row, on_cards)
        usable = worth.bounded(on_cards, worth.limits_of(free.cpu.item(row), free.memory.item(row)))
        self._value[row] = usable.dot(self.weights[worth.kind.item(row)])

    def took(self, free: Free, row: int, column: int, fitting: Fitting, destroyed: float) -> None:
        """One replica was put on a node, whose score was `destroyed`, on that card if it shares one."""
        self._alike.moved((row,))
        self._value[row] -= destroyed // 1
        if column >= 0:
            left = free.gpu.item(row, column)
            self._on_cards.change(row, self._worth.change(left + fitting.milli(row, column), left))
        elif fitting.gpus:
            self._on_cards.change(row, -fitting.gpus * self._worth.whole_card)

    def _total(self, usable: Floats, rows: Ints) -> Floats:
        """What these nodes are worth: exact, whatever the order of the sum."""
        found: Floats = np.einsum("ij,ij->i", usable, self.weights.take(self._worth.kind[rows], 0))
        return found

    def everywhere(self, free: Free, fitting: Fitting) -> tuple[Values, Columns]:
        """The scores of all nodes, NOT_HERE where no replica fits, and which card it would share there."""
        rows, like, _ = self._alike.examples(free)
        values, columns = np.empty(len(free.cpu)), np.full(len(free.cpu), NO_COLUMN, np.int8)
        self._score(free, fitting, rows, np.ones(len(rows), np.bool_), values, columns)
        return np.where(fitting.allowed, values[rows][like], NOT_HERE), columns[rows][like]

    def again(self, free: Free, fitting: Fitting, rows: Ints, values: Values, columns: Columns) -> None:
        """As `everywhere`, of these nodes only, into what it said before."""
        self._score(free, fitting, rows, fitting.allowed[rows], values, columns)

    def _score(
        self, free: Free, fitting: Fitting, rows: Ints, fits: Bools, values: Values, columns: Columns
    ) -> None:
        """Into the rows of these nodes; of columns only where a replica fits and shares a card."""
        if fitting.cpu:
            fits &= free.cpu[rows] >= fitting.cpu
        if fitting.memory:
            fits &= free.memory[rows] >= fitting.memory
        for name, amount in fitting.extras:
            fits &= free.extra(name, rows) >= amount
        values[rows] = NOT_HERE
        nodes = rows[fits]
        if fitting.gpus:
            nodes = nodes[
                np.add.reduce(free.gpu.take(nodes, 0) >= fitting.needed(nodes), axis=1) >= fitting.gpus
            ]
        if not len(nodes):
            return
        cpu, memory = free.cpu[nodes] - fitting.cpu, free.memory[nodes] - fitting.memory
        if fitting.needs is not None and not fitting.gpus:
            values[nodes], columns[nodes] = self._shared_card(free, fitting, nodes, cpu, memory)
            return
        on_cards = self._on_cards.take(nodes)
        if fitting.gpus:
            on_cards -= fitting.gpus * self._worth.whole_card
        destroyed = self._value[nodes]
        destroyed -= self._total(self._worth.bounded(on_cards, self._worth.limits(cpu, memory)), nodes)
        if fitting.needs is None:
            destroyed += BESIDE_IDLE_CARDS * self._worth.has_cards[nodes]
        values[nodes] = destroyed

    def _shared_card(
        self, free: Free, fitting: Fitting, rows: Ints, cpu: Ints, memory: Ints
    ) -> tuple[Values, Columns]:
        """The best card of each node to share, where so much would be left.
        Of idle cards of a node one is looked at."""
        gpu, needed, each = free.gpu.take(rows, 0), fitting.needed(rows), np.arange(len(rows))
        enough = gpu >= needed
        if fitting.need is not None:
            roomiest = gpu.argmax(axis=1)
            kept = enough[each, roomiest]
            enough &= gpu < WHOLE_GPU
            enough[each, roomiest] = kept
        node, card = enough.nonzero()
        found = np.full(gpu.shape, NOT_HERE)
        if len(node):
            worth, nodes, before = self._worth, rows[node], gpu[node, card]
            after = before - (needed if isinstance(needed, int) else needed[node, card])
            on_cards = self._on_cards.take(nodes)
            on_cards += worth.change(before, after)
            left = self._total(worth.bounded(on_cards, worth.limits(cpu[node], memory[node])), nodes)
            found[node, card] = np.subtract(self._value[nodes], left)
        best = found.argmin(axis=1)
        return found[each, best], best.astype(np.int8)

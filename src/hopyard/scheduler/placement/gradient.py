"""Scores nodes by what a replica would destroy there of what usual gangs could still use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.fitting import Fitting
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Bools, Ints
from hopyard.scheduler.placement.scores import NO_COLUMN, NOT_HERE, Columns, Values
from hopyard.scheduler.placement.worth import Floats, Halves, Worth

MANY = 256  # from so many nodes on, those in equal states are looked at once
BESIDE_IDLE_CARDS = 0.5  # who needs no card goes to a node without any where it destroys as little elsewhere
FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9], np.uint64).view(np.int64)


class Gradient:
    """Follows one Free: what every node is worth now, kept up as nodes change. Scores are whole numbers below 2^53, and a half."""

    def __init__(self, worth: Worth, free: Free) -> None:
        self._worth, self._weights, self._shared = worth, worth.empty, False
        first, back = self._alike(free, np.arange(len(free.cpu)))
        on_cards = worth.on_cards(free.gpu[first])
        self._on_cards: Halves = on_cards.astype(np.float32)[back]
        self._value = self._total(worth.bounded(on_cards, worth.limits(free.cpu[first], free.memory[first])), first)[back]

    def copy(self) -> Gradient:
        found = object.__new__(Gradient)
        found._worth, found._weights, found._on_cards, found._value = self._worth, self._weights, self._on_cards, self._value
        found._shared = self._shared = True
        return found

    def weigh(self, free: Free) -> bool:
        """Let shapes count by how much room there is for them now; whether scores are others than before."""
        worth = self._worth
        first, back = self._alike(free, np.arange(len(free.cpu)))
        usable = worth.bounded(self._on_cards[first], worth.limits(free.cpu[first], free.memory[first]))
        weights = worth.weights(worth.supply(usable, first, np.bincount(back)))
        if np.array_equal(weights, self._weights):
            return False
        self._own()
        self._weights = weights
        self._value = self._total(usable, first)[back]
        return True

    def refresh(self, free: Free, rows: Ints) -> None:
        """These nodes changed."""
        self._own()
        worth = self._worth
        on_cards = worth.on_cards(free.gpu[rows])
        self._on_cards[rows] = on_cards
        self._value[rows] = self._total(worth.bounded(on_cards, worth.limits(free.cpu[rows], free.memory[rows])), rows)

    def took(self, free: Free, row: int, column: int, fitting: Fitting, destroyed: float) -> None:
        """One replica was put on a node, whose score was `destroyed`, on that card if it shares one."""
        self._own()
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
        found: Floats = np.einsum("ij,ij->i", usable, self._weights[self._worth.kind[rows]])
        return found

    def __call__(self, free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
        """The scores of these nodes, NOT_HERE where no replica fits, and which card it would share there."""
        if len(rows) < MANY:
            return self._score(free, fitting, rows)
        differ = [fitting.allowed[rows].astype(np.int64), *(free.extra(name, rows) for name, _ in fitting.extras)]
        first, back = self._alike(free, rows, differ)
        values, columns = self._score(free, fitting, rows[first])
        return values[back], columns[back]

    def _alike(self, free: Free, rows: Ints, differ: Sequence[Ints] = ()) -> tuple[Ints, Ints]:
        """One of each set of nodes in equal states, and which of them each node is like; both count within `rows`. States that
        are not equal get the same number about once in 2^64 times."""
        number = _mixed(self._worth.kind[rows], free.cpu[rows])
        for more in (free.memory[rows], *free.gpu[rows].T, *differ):
            number = _mixed(number, more)
        _, first, back = np.unique(number, return_index=True, return_inverse=True)
        return first, back.reshape(-1)

    def _score(self, free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
        worth = self._worth
        cpu, memory = free.cpu[rows] - fitting.cpu, free.memory[rows] - fitting.memory
        fits = fitting.allowed[rows]
        if fitting.cpu:
            fits &= cpu >= 0
        if fitting.memory:
            fits &= memory >= 0
        for name, amount in fitting.extras:
            fits &= free.extra(name, rows) >= amount
        if fitting.needs is not None and not fitting.gpus:
            return self._shared_card(free, fitting, rows, fits, cpu, memory)
        if fitting.needs is not None:
            fits &= np.count_nonzero(free.gpu[rows] >= fitting.needed(rows), axis=1) >= fitting.gpus
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
            left = self._total(worth.bounded(on_cards, worth.limits(cpu, memory)[node]), nodes)
            found[node, card] = np.subtract(self._value[nodes], left)
        best = found.argmin(axis=1)
        return found[np.arange(len(rows)), best], best.astype(np.int8)


def _mixed(a: Ints, b: Ints) -> Ints:
    """A number of both, whose bits depend on all of theirs; wraps around (the finish of splitmix64)."""
    found: Ints = a * FACTORS[0] + b
    found ^= found >> 31
    found *= FACTORS[1]
    found ^= found >> 29
    return found

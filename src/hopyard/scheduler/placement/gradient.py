"""Scores nodes by what a replica would destroy there of what usual gangs could still use."""

from __future__ import annotations

import numpy as np

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.fitting import Fitting
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Ints
from hopyard.scheduler.placement.scores import NO_COLUMN, Columns, Values, roominess
from hopyard.scheduler.placement.worth import Floats, Worth

MANY = 512  # from so many nodes on, those in equal states are looked at once


class Gradient:
    """Follows one Free: what every node is worth now, kept up as nodes change.

    A score is (what is destroyed) * 2^18 + (how roomy the node is), a whole number below 2^53, so that it is exact.
    """

    def __init__(self, worth: Worth, free: Free) -> None:
        self._worth = worth
        self._on_cards = worth.on_cards(free.gpu)
        self._value = np.zeros(len(free.cpu))
        self._shared = False
        self._evaluate(free, np.arange(len(free.cpu)))

    def copy(self) -> Gradient:
        found = object.__new__(Gradient)
        found._worth, found._on_cards, found._value = self._worth, self._on_cards, self._value
        found._shared = self._shared = True
        return found

    def refresh(self, free: Free, rows: Ints) -> None:
        """These nodes changed."""
        if self._shared:
            self._on_cards, self._value, self._shared = self._on_cards.copy(), self._value.copy(), False
        self._on_cards[rows] = self._worth.on_cards(free.gpu[rows])
        self._evaluate(free, rows)

    def _evaluate(self, free: Free, rows: Ints) -> None:
        worth = self._worth
        usable = worth.bounded(self._on_cards[rows], worth.limits(free.cpu[rows], free.memory[rows]))
        self._value[rows] = worth.total(usable, rows)

    def __call__(self, free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
        """The scores of nodes that one replica fits on, and which card it would share there."""
        if len(rows) < MANY:
            return self._score(free, fitting, rows)
        first, back = self._alike(free, rows)
        values, columns = self._score(free, fitting, rows[first])
        return values[back], columns[back]

    def _alike(self, free: Free, rows: Ints) -> tuple[Ints, Ints]:
        """One of each set of nodes in equal states, and which of them each node is like."""
        worth = self._worth
        parts = [worth.kind[rows][:, None], free.cpu[rows][:, None], free.memory[rows][:, None], free.gpu[rows]]
        state = np.ascontiguousarray(np.concatenate(parts, axis=1))
        _, first, back = np.unique(state.view(f"V{state.itemsize * state.shape[1]}"), return_index=True, return_inverse=True)
        return first, back.reshape(-1)

    def _score(self, free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
        worth = self._worth
        limit = worth.limits(free.cpu[rows] - fitting.cpu, free.memory[rows] - fitting.memory)
        columns = np.full(len(rows), NO_COLUMN, np.int8)
        if fitting.needs is None:
            left = worth.total(worth.bounded(self._on_cards[rows], limit), rows)
        elif fitting.gpus:
            left = worth.total(worth.bounded(self._on_cards[rows] - fitting.gpus * worth.whole_card, limit), rows)
        else:
            left, columns = self._shared_card(free, fitting, rows, limit)
        values: Values = (self._value[rows] - left) * (1 << 18) + roominess(free, rows)
        return values, columns

    def _shared_card(self, free: Free, fitting: Fitting, rows: Ints, limit: Floats) -> tuple[Floats, Columns]:
        """The best card of each node to share, and what the node is worth then. Of cards with as much left one is looked at."""
        worth, gpu, needed = self._worth, free.gpu[rows], fitting.needed(rows)
        enough = gpu >= needed
        if fitting.need is not None:
            whole = gpu == WHOLE_GPU
            enough &= ~whole | (np.cumsum(whole, axis=1) == 1)
        node, card = np.nonzero(enough)
        before = gpu[node, card]
        after = before - (needed if isinstance(needed, int) else needed[node, card])
        on_cards = self._on_cards[rows[node]] + worth.change(before, after)
        total = worth.total(worth.bounded(on_cards, limit[node]), rows[node])
        left = np.full(gpu.shape, -1.0)
        left[node, card] = total
        best = left.argmax(axis=1)
        return left[np.arange(len(rows)), best], best.astype(np.int8)

"""Which node is the best for one replica, kept up as nodes change: only those are looked at again that
did."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from hopyard.scheduler.placement.fitting import Fitting, Shape
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.gradient import Gradient
from hopyard.scheduler.placement.ground import Ints
from hopyard.scheduler.placement.mix import NO_MIX, Mix
from hopyard.scheduler.placement.scores import GRADIENTS, NOT_HERE, SCORES, Columns, Values
from hopyard.scheduler.placement.worth import Worth

MOST_SHAPES = 512
FEW = 4
NO_ROW = -1
STALE = -1  # what is known of no node holds any more
# times the number of nodes: so many are remembered, for shapes that were not asked for in a while
MOST_CHANGES = 8


class Ranked:
    """The scores of all nodes for one shape (NOT_HERE where it does not fit), as of the first `seen`
    changes."""

    __slots__ = ("columns", "fitting", "seen", "shared", "values")

    def __init__(self, fitting: Fitting, values: Values, columns: Columns, seen: int) -> None:
        self.fitting, self.values, self.columns, self.seen, self.shared = (
            fitting,
            values,
            columns,
            seen,
            False,
        )


class Best(NamedTuple):
    """column: the card to share, NO_COLUMN where none is.
    seen: how many changes were known when it was found."""

    score: str
    fitting: Fitting
    row: int
    column: int
    value: float
    seen: int


class Rankings:
    """Of one Free, for all shapes and scores that were asked for.
    Whoever changes the Free says which nodes changed."""

    def __init__(self, free: Free, mix: Mix = NO_MIX) -> None:
        self._free, self._mix = free, mix
        self._changes: list[int] = []
        self._ranked: dict[tuple[str, Shape], Ranked] = {}
        self._gradients: dict[str, tuple[Gradient, int]] = {}
        self._fittings: dict[Shape, Fitting] = {}
        self._worths: dict[tuple[Mix, bool], Worth] = {}

    @property
    def mix(self) -> Mix:
        return self._mix

    def weigh(self, mix: Mix) -> None:
        """Keep room for these shapes from now on, and most for those for which there is least now."""
        if mix != self._mix:
            self._mix = mix
            self._forget_gradients()
        if self._free.ground.cards and self._gradient("fragmentation").weigh(self._free):
            self._forget_ranked("fragmentation")

    def _forget_gradients(self) -> None:
        for name in GRADIENTS:
            self._gradients.pop(name, None)
            self._forget_ranked(name)

    def _forget_ranked(self, score: str) -> None:
        self._ranked = {key: ranked for key, ranked in self._ranked.items() if key[0] != score}

    def fitting(self, shape: Shape) -> Fitting:
        found = self._fittings.get(shape)
        if found is None:
            if len(self._fittings) >= 2 * MOST_SHAPES:
                self._fittings.clear()
            found = self._fittings[shape] = Fitting(self._free.ground, shape)
        return found

    def copy(self, free: Free) -> Rankings:
        """For a copy of the Free; what is known is shared until one of them learns more."""
        found = Rankings(free, self._mix)
        if self._ranked or self._gradients:
            found._changes = self._changes.copy()  # which of them these know
        found._gradients = {
            name: (gradient.copy(), seen) for name, (gradient, seen) in self._gradients.items()
        }
        found._fittings, found._worths = self._fittings, self._worths  # true of the ground, whatever is free
        found._ranked = dict(self._ranked)
        for ranked in self._ranked.values():
            ranked.shared = True
        return found

    def turned(self, row: int, *, opened: bool) -> None:
        """The machine of one row was opened or closed, or holds other things: the Free has another ground by
        now."""
        ground = self._free.ground
        if any(worth.is_alone(ground, row) for worth in self._worths.values()):
            self._worths = {}
            self._forget_gradients()
        self._fittings = (
            {} if opened else {shape: known.closed(ground, row) for shape, known in self._fittings.items()}
        )
        self._ranked = {
            (score, shape): Ranked(self.fitting(shape), known.values, known.columns, known.seen)
            for (score, shape), known in self._ranked.items()
        }
        for ranked in self._ranked.values():
            ranked.shared = True
        self.changed(row)

    def changed(self, row: int) -> None:
        self._changes.append(row)
        if len(self._changes) > 4096 + MOST_CHANGES * len(self._free.cpu):
            self._forget_oldest()

    def changed_many(self, rows: Ints) -> None:
        if len(rows) * 4 > len(self._free.cpu):
            self.forget()
        else:
            self._changes += rows.tolist()

    def forget(self) -> None:
        """Everything may have changed. What shapes count stays as it was when they were weighed."""
        self._changes.clear()
        self._ranked.clear()
        self._gradients = {name: (gradient, STALE) for name, (gradient, _) in self._gradients.items()}

    def best(self, score: str, shape: Shape) -> Best | None:
        """The best node for one replica; None where it fits nowhere."""
        fitting = self.fitting(shape)
        ranked = self._caught_up(score, fitting)
        if ranked.fitting is fitting:
            row = int(ranked.values.argmin()) if len(ranked.values) else NO_ROW
        else:
            rows = fitting.rows
            row = rows.item(ranked.values[rows].argmin()) if len(rows) else NO_ROW
        if row == NO_ROW or (value := ranked.values.item(row)) == NOT_HERE:
            return None
        return Best(score, fitting, row, ranked.columns.item(row), value, len(self._changes))

    def values(self, score: str, shape: Shape) -> Values:
        """The scores of all nodes for one replica, NOT_HERE where it does not fit."""
        fitting = self.fitting(shape)
        ranked = self._caught_up(score, fitting)
        return (
            ranked.values if ranked.fitting is fitting else np.where(fitting.allowed, ranked.values, NOT_HERE)
        )

    def took(self, best: Best) -> None:
        """A replica of that shape was put where it was best: what the node is worth now was worked out to
        find that out."""
        gradient, seen = self._gradients.get(best.score) or (None, 0)
        as_then = seen == best.seen == len(self._changes)
        self.changed(best.row)
        if gradient is not None and as_then and len(self._changes) == seen + 1:
            gradient.took(self._free, best.row, best.column, best.fitting, best.value)
            self._gradients[best.score] = gradient, seen + 1

    def indifferent(self, score: str) -> bool:
        """Whether all nodes where something fits have one score: where there are no cards, nothing of them is
        destroyed."""
        return score == "first-fit" or (score in GRADIENTS and not self._free.ground.cards)

    def knows(self, score: str, shape: Shape) -> bool:
        """Whether nothing is left to work out of the scores as of now."""
        found = self._ranked.get((score, _scored_as(score, self.fitting(shape))))
        return found is not None and found.seen == len(self._changes)

    def _caught_up(self, score: str, fitting: Fitting) -> Ranked:
        """The scores as of now; they hold for this shape on the nodes that are allowed to it."""
        key = score, _scored_as(score, fitting)
        found = self._ranked.get(key)
        if found is None:
            return self._rank(*key)
        return self._catch_up(key, found) if found.seen < len(self._changes) else found

    def _rank(self, score: str, shape: Shape) -> Ranked:
        fitting = self.fitting(shape)
        if score in GRADIENTS:
            values, columns = self._gradient(score).everywhere(self._free, fitting)
        else:
            values, columns = SCORES[score](self._free, fitting, np.arange(len(self._free.cpu)))
        if len(self._ranked) >= MOST_SHAPES:
            del self._ranked[next(iter(self._ranked))]
        found = self._ranked[score, shape] = Ranked(fitting, values, columns, len(self._changes))
        return found

    def _catch_up(self, key: tuple[str, Shape], ranked: Ranked) -> Ranked:
        changed = self._since(ranked.seen)
        rows = np.fromiter(changed, np.int64, len(changed))
        if ranked.shared:
            ranked = Ranked(ranked.fitting, ranked.values.copy(), ranked.columns.copy(), ranked.seen)
            self._ranked[key] = ranked
        score = key[0]
        if score in GRADIENTS:
            self._gradient(score).again(self._free, ranked.fitting, rows, ranked.values, ranked.columns)
        else:
            ranked.values[rows], ranked.columns[rows] = SCORES[score](self._free, ranked.fitting, rows)
        ranked.seen = len(self._changes)
        return ranked

    def _since(self, seen: int) -> Collection[int]:
        """The nodes that changed since then, each once."""
        return set(self._changes[seen:])

    def _gradient(self, name: str) -> Gradient:
        """Of this name, with all changes taken in."""
        gradient, seen = self._gradients.get(name) or (None, 0)
        if gradient is None or seen == STALE:
            gradient = Gradient(self._worth(name), self._free, None if gradient is None else gradient.weights)
        elif seen < len(self._changes):
            gradient.refresh(self._free, self._since(seen))
        self._gradients[name] = gradient, len(self._changes)
        return gradient

    def _worth(self, name: str) -> Worth:
        key = self._mix, GRADIENTS[name]
        found = self._worths.get(key)
        if found is None:
            if len(self._worths) >= FEW:
                self._worths.clear()
            found = self._worths[key] = Worth(self._free.ground, self._mix, fluid=GRADIENTS[name])
        return found

    def _forget_oldest(self) -> None:
        """The older half of the changes, and what has not been asked for since."""
        half = len(self._changes) // 2
        del self._changes[:half]
        self._gradients = {
            name: (gradient, seen - half if seen >= half else STALE)
            for name, (gradient, seen) in self._gradients.items()
        }
        kept = {key: ranked for key, ranked in self._ranked.items() if ranked.seen >= half}
        self._ranked = {}
        for key, ranked in kept.items():
            self._ranked[key] = Ranked(ranked.fitting, ranked.values, ranked.columns, ranked.seen - half)
            self._ranked[key].shared = ranked.shared


def _scored_as(score: str, fitting: Fitting) -> Shape:
    """The shape whose scores serve this one, too."""
    return fitting.shape if fitting.loose is None or score not in GRADIENTS else fitting.loose

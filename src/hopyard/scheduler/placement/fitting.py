"""One shape on one ground: what of the question whether it fits depends on the nodes alone, worked out
once."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hopyard.domain.gang import ANYWHERE, Assignment, Where
from hopyard.domain.resources import WHOLE_GPU, Resources
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import NEVER, Bools, Ground, Ints


class Shape(NamedTuple):
    """What one replica asks for, and of which nodes and cards: replicas of one shape fit in the same
    places."""

    resources: Resources
    where: Where
    closed_models: frozenset[str] = frozenset()


Rows = Ints | slice
ALL = slice(None)


class Fitting:
    """allowed: which nodes may be used, and have such cards. needs: by kind of card, as Ground.needs. need:
    of every card of every allowed node, where that is the same for all; else None. loose: what asks for as
    much on any node, and so is served alike by the nodes that are allowed; None where that is this shape, or
    where nodes have cards of several kinds. gpus: whole cards for each replica, 0 for a share of one."""

    __slots__ = (
        "_rows",
        "allowed",
        "cpu",
        "extras",
        "gpus",
        "ground",
        "loose",
        "memory",
        "need",
        "needs",
        "shape",
    )

    def __init__(self, ground: Ground, shape: Shape) -> None:
        request = shape.resources
        self.ground, self.shape = ground, shape
        loose = Shape(replace(request, gpu_models=()) if request.gpu_models else request, ANYWHERE)
        self.loose = loose if loose != shape and ground.one_kind_each else None
        self.cpu, self.memory, self.gpus = request.cpu_milli, request.memory_bytes, request.gpus
        self.extras = tuple((name, amount) for name, amount in request.extras if amount)
        self.needs: Ints | None = None
        self._rows: Ints | None = None
        self.need: int | None = None
        self.allowed: Bools = ground.allowed(shape.where)
        if request.gpus or request.shares_gpu:
            self.needs = ground.needs(request, shape.closed_models)
            has, usable = ground.has, self.needs[:-1] != NEVER
            self.allowed = self.allowed & has[:, usable].any(axis=1)
            found = set(self.needs[:-1][has[self.allowed].any(axis=0)].tolist())
            if len(found) == 1 and NEVER not in found:
                (self.need,) = found

    def closed(self, ground: Ground, row: int) -> Fitting:
        """On the same ground with one machine less that is open."""
        found = copy(self)
        found.ground, found.allowed = ground, self.allowed.copy()
        found.allowed[row], found._rows = False, None
        return found

    @property
    def rows(self) -> Ints:
        """The nodes that are allowed."""
        if self._rows is None:
            self._rows = np.flatnonzero(self.allowed)
        return self._rows

    def needed(self, rows: Rows) -> Ints | int:
        """Thousandths needed of each card of these nodes."""
        assert self.needs is not None
        return self.needs[self.ground.card[rows]] if self.need is None else self.need

    def fits(self, free: Free, rows: Rows = ALL) -> Bools:
        """Whether one replica fits on each of these nodes."""
        found = self.allowed[rows]
        if self.cpu:
            found = found & (free.cpu[rows] >= self.cpu)
        if self.memory:
            found = found & (free.memory[rows] >= self.memory)
        for name, amount in self.extras:
            found = found & (free.extra(name, rows) >= amount)
        if self.needs is not None:
            enough = free.gpu[rows] >= self.needed(rows)
            found = found & (
                enough.any(axis=1) if self.gpus <= 1 else np.count_nonzero(enough, axis=1) >= self.gpus
            )
        return found

    def room(self, free: Free, at_most: int, rows: Rows = ALL) -> Ints:
        """How many replicas, up to `at_most`, fit side by side on each of these nodes."""
        found = np.where(self.allowed[rows], at_most, 0)
        if self.cpu:
            np.minimum(found, free.cpu[rows] // self.cpu, out=found)
        if self.memory:
            np.minimum(found, free.memory[rows] // self.memory, out=found)
        for name, amount in self.extras:
            np.minimum(found, free.extra(name, rows) // amount, out=found)
        if self.needs is not None:
            gpu, needed = free.gpu[rows], self.needed(rows)
            if self.gpus:
                np.minimum(found, np.count_nonzero(gpu >= needed, axis=1) // self.gpus, out=found)
            else:
                np.minimum(found, (np.maximum(gpu, 0) // needed).sum(axis=1), out=found)
        return np.maximum(found, 0, out=found)

    def cards(self, free: Free, row: int) -> tuple[tuple[int, ...], int] | None:
        """Which cards of this node one replica gets, and how many thousandths of each: the lowest whole ones;
        of those to share the fullest that has enough left. None where they do not suffice."""
        if self.needs is None:
            return (), WHOLE_GPU
        left = free.gpu[row].tolist()
        needs = (
            [self.need] * len(left) if self.need is not None else self.needs[self.ground.card[row]].tolist()
        )
        enough = [j for j, have in enumerate(left) if have >= needs[j]]
        if self.gpus:
            return (tuple(enough[: self.gpus]), WHOLE_GPU) if len(enough) >= self.gpus else None
        if not enough:
            return None
        column = min(enough, key=left.__getitem__)
        return (column,), needs[column]

    def seat(self, free: Free, rank: int, row: int) -> Assignment | None:
        """Where on this node one more replica goes, None where it does not fit there for its cards."""
        cards = self.cards(free, row)
        if cards is None:
            return None
        gpus = free.ground.gpus[row]
        return Assignment(rank, free.ground.ids[row], tuple(gpus[j].index for j in cards[0]), cards[1])

    def milli(self, row: int, column: int) -> int:
        """What one replica takes of this card."""
        if self.need is not None:
            return self.need
        assert self.needs is not None
        return int(self.needs[self.ground.card[row, column]])


def least_gpu(request: Resources) -> int:
    """Thousandths of GPUs that one replica takes at least; of a share by memory nothing more is known."""
    return WHOLE_GPU * request.gpus or request.gpu_milli or int(request.shares_gpu)

"""How good a node is for one replica: the smallest score wins, then the smallest id.
One rule a function, by name.

"fragmentation" (the default) and "fgd" are in gradient.py: they keep what they know between questions. The
others are those that "Beware of Fragmentation" (USENIX ATC'23) compares with, after its descriptions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.fitting import Fitting
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Ints

Values = NDArray[np.float64]  # whole numbers below 2^53: exact
Columns = NDArray[np.int8]
Score = Callable[[Free, Fitting, Ints], tuple[Values, Columns]]
NO_COLUMN = -1  # no card is shared
NOT_HERE = float("inf")  # the score where no replica fits
FINE = 1 << 20


def fullest_card(free: Free, fitting: Fitting, rows: Ints) -> Columns:
    """The card with the least left that is enough for a share, the lowest of several."""
    if fitting.needs is None or fitting.gpus:
        return np.full(len(rows), NO_COLUMN, np.int8)
    gpu = free.gpu[rows]
    found: Columns = np.where(gpu >= fitting.needed(rows), gpu, WHOLE_GPU + 1).argmin(axis=1).astype(np.int8)
    return found


def first_fit(free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
    """All alike: the smallest id wins."""
    return np.zeros(len(rows)), fullest_card(free, fitting, rows)


def best_fit(free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
    """The least left, each resource as a part of the most that a node has, all alike."""
    left = _part(free.cpu, free.ground.cpu, rows) + _part(free.memory, free.ground.memory, rows)
    left += _part(free.gpu.sum(axis=1), free.ground.gpu.sum(axis=1), rows)
    return left, fullest_card(free, fitting, rows)


def dot_product(free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
    """The smallest product of what is left and what is asked for (Panigrahy et al., "Heuristics for Vector
    Bin Packing")."""
    ground = free.ground
    gpus = WHOLE_GPU * fitting.gpus or (
        0 if fitting.needs is None else np.minimum(fitting.needs, WHOLE_GPU).min(initial=WHOLE_GPU)
    )
    found = np.zeros(len(rows))
    for left, total, asked in (
        (free.cpu, ground.cpu, fitting.cpu),
        (free.memory, ground.memory, fitting.memory),
        (free.gpu.sum(axis=1), ground.gpu.sum(axis=1), int(gpus)),
    ):
        found += np.floor(_part(left, total, rows) * (asked / max(int(total.max(initial=1)), 1)))
    return found, fullest_card(free, fitting, rows)


def packed(free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
    """Cards that are in use already, then idle cards of nodes in use, then idle nodes; the fuller node
    first."""
    columns = fullest_card(free, fitting, rows)
    gpu, total = free.gpu[rows], free.ground.gpu[rows]
    idle_node = (gpu == total).all(axis=1)
    idle_card = (
        np.ones(len(rows), np.bool_)
        if fitting.needs is None or fitting.gpus
        else gpu[np.arange(len(rows)), columns] == WHOLE_GPU
    )
    left = _part(free.gpu.sum(axis=1), free.ground.gpu.sum(axis=1), rows) + _part(
        free.cpu, free.ground.cpu, rows
    )
    return (np.where(idle_card, 1, 0) + idle_node) * float(1 << 40) + left, columns


def _part(left: Ints, total: Ints, rows: Ints) -> Values:
    most = max(int(total.max(initial=1)), 1)
    found: Values = np.floor(left[rows] * (FINE / most))
    return found


def where_it_fits(rule: Score) -> Score:
    """The rule on the nodes on which a replica fits, NOT_HERE on the others."""

    def score(free: Free, fitting: Fitting, rows: Ints) -> tuple[Values, Columns]:
        fits = fitting.fits(free, rows)
        values, columns = np.full(len(rows), NOT_HERE), np.full(len(rows), NO_COLUMN, np.int8)
        if fits.any():
            values[fits], columns[fits] = rule(free, fitting, rows[fits])
        return values, columns

    return score


SCORES: dict[str, Score] = {
    "best-fit": where_it_fits(best_fit),
    "dot-product": where_it_fits(dot_product),
    "packed": where_it_fits(packed),
    "first-fit": where_it_fits(first_fit),
}
GRADIENTS = {"fragmentation": True, "fgd": False}  # by name, whether it is the fluid measure (see worth.py)

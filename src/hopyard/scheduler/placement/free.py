"""What is left on each node, as arrays: the scratch paper on which a place is looked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopyard.domain.gang import Where
from hopyard.domain.resources import WHOLE_GPU, Resources
from hopyard.scheduler.placement.ground import NEVER, Ground, Ints


@dataclass(frozen=True, slots=True)
class Shape:
    """What one replica asks for, and of which nodes and cards: replicas of one shape fit in the same places."""

    resources: Resources
    where: Where
    closed_models: frozenset[str] = frozenset()


class Free:
    """cpu[i], memory[i], extras[name][i], gpu[i, j]: what is left on node i of `ground`; less than nothing where a node
    shrank under what runs on it."""

    __slots__ = ("cpu", "extras", "gpu", "ground", "memory")

    def __init__(self, ground: Ground, cpu: Ints, memory: Ints, gpu: Ints, extras: dict[str, Ints]) -> None:
        self.ground, self.cpu, self.memory, self.gpu, self.extras = ground, cpu, memory, gpu, extras

    @classmethod
    def whole(cls, ground: Ground) -> Free:
        """The nodes as if nothing ran on them."""
        return cls(
            ground, ground.cpu.copy(), ground.memory.copy(), ground.gpu.copy(), {k: v.copy() for k, v in ground.extras.items()}
        )

    def copy(self) -> Free:
        return Free(
            self.ground, self.cpu.copy(), self.memory.copy(), self.gpu.copy(), {k: v.copy() for k, v in self.extras.items()}
        )

    def room(self, shape: Shape, at_most: int, rows: Ints | slice = slice(None)) -> Ints:
        """How many replicas of this shape, up to `at_most`, fit side by side on each of these nodes."""
        request, ground = shape.resources, self.ground
        found = np.where(ground.allowed(shape.where)[rows], at_most, 0)
        if request.cpu_milli:
            np.minimum(found, self.cpu[rows] // request.cpu_milli, out=found)
        if request.memory_bytes:
            np.minimum(found, self.memory[rows] // request.memory_bytes, out=found)
        for name, amount in request.extras:
            if amount:
                left = self.extras[name][rows] // amount if name in self.extras else 0
                np.minimum(found, left, out=found)
        if request.gpus or request.shares_gpu:
            needs = ground.needs(request, shape.closed_models)[ground.card[rows]]
            if request.gpus:
                np.minimum(found, np.count_nonzero(self.gpu[rows] >= needs, axis=1) // request.gpus, out=found)
            else:
                np.minimum(found, (np.maximum(self.gpu[rows], 0) // needs).sum(axis=1), out=found)
        return np.maximum(found, 0, out=found)

    def cards(self, shape: Shape, row: int) -> tuple[tuple[int, ...], int] | None:
        """Columns of the cards that one replica would get on this node, and how many thousandths of each; None where they do
        not suffice. Of whole cards the lowest; of cards to share the fullest that has room."""
        request = shape.resources
        if not (request.gpus or request.shares_gpu):
            return (), WHOLE_GPU
        needs = self.ground.needs(request, shape.closed_models)[self.ground.card[row]].tolist()
        left = self.gpu[row].tolist()
        fitting = [j for j, (need, have) in enumerate(zip(needs, left, strict=True)) if need != NEVER and have >= need]
        if request.gpus:
            return (tuple(fitting[: request.gpus]), WHOLE_GPU) if len(fitting) >= request.gpus else None
        if not fitting:
            return None
        best = min(fitting, key=lambda j: (left[j], j))
        return (best,), needs[best]

    def use(self, row: int, request: Resources, columns: tuple[int, ...], milli: int, sign: int = 1) -> None:
        """Take what one replica uses (sign 1), or give it back (-1)."""
        self.cpu[row] -= sign * request.cpu_milli
        self.memory[row] -= sign * request.memory_bytes
        for column in columns:
            self.gpu[row, column] -= sign * milli
        for name, amount in request.extras:
            if name in self.extras:
                self.extras[name][row] -= sign * amount

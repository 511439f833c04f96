"""`hop.loop`: a loop that goes on where the checkpoint left off.

`LoopStack` is the pure part: which loops are through, which are under way, how far. It is what a checkpoint
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from hopyard.errors import SpecError
from hopyard.sdk.checkpoints import LoopPosition

T = TypeVar("T")


class LoopObserver(Protocol):
    """What a loop tells whoever keeps the checkpoints."""

    def on_enter(self, loop: Loop[Any]) -> LoopPosition | None:
        """A loop begins; where it was when the checkpoint was made, None to begin at the beginning."""

    def on_caught_up(self, loop: Loop[Any]) -> None:
        """A resumed loop is past what was done before; what comes next is new."""

    def on_replay(self, position: LoopPosition) -> None:
        """The items of a resumed loop are about to be drawn again, to be passed over."""

    def on_iteration(self, loop: Loop[Any]) -> None:
        """A turn is over: a safe point."""

    def on_exit(self, loop: Loop[Any], *, finished: bool) -> None:
        """A loop is over: because nothing is left of it (`finished`), or by `break` or an exception."""


class Loop(Generic[T]):
    """What `hop.loop` returns: iterate over it once. `len()` is that of the iterable."""

    def __init__(self, iterable: Iterable[T], observer: LoopObserver, *, save_every: int, name: str) -> None:
        if isinstance(save_every, bool) or not isinstance(save_every, int) or save_every < 1:
            raise SpecError(
                f"hop.loop: every={save_every!r}",
                hints=("it counts turns between checkpoints: a whole number from 1",),
            )
        self.name, self.save_every, self.iterations = name, save_every, 0
        self.has_unsaved_iterations = False  # whether turns were made since the keeper saved this loop
        self.total = len(iterable) if isinstance(iterable, Sized) else None
        # set by the keeper for iterables that draw their order as they begin
        self.rng_state: dict[str, Any] | None = None
        self._iterable, self._observer = iterable, observer

    @property
    def must_iterate_skipped(self) -> bool:
        """Whether passing over items has to draw them: all but sequences, which have places."""
        return not isinstance(self._iterable, Sequence)

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError("this loop has no known length")
        return self.total

    def __iter__(self) -> Iterator[T]:
        keeper, finished = self._observer, False
        position = keeper.on_enter(self)
        try:
            for item in self._remaining(position):
                yield item
                self.iterations += 1
                keeper.on_iteration(self)
            finished = True
        finally:
            keeper.on_exit(self, finished=finished)

    def _remaining(self, position: LoopPosition | None) -> Iterable[T]:
        if position is None:
            return self._iterable
        self.iterations = position.iterations if self.total is None else min(position.iterations, self.total)
        if position.complete or self.iterations == self.total:
            self._observer.on_caught_up(self)
            return ()
        if isinstance(self._iterable, Sequence):
            rest: Iterable[T] = (self._iterable[i] for i in range(self.iterations, len(self._iterable)))
        else:
            self._observer.on_replay(position)
            rest = iter(self._iterable)
            for _ in islice(rest, self.iterations):
                pass
        self._observer.on_caught_up(self)
        return rest


class LoopStack:
    """The loops that are under way, from the outermost, and those that are through beside them."""

    def __init__(self) -> None:
        self.active: list[Loop[Any]] = []
        # at each depth; what is inside a turn is forgotten as the turn ends
        self._finished_positions: list[list[LoopPosition]] = [[]]
        self._resume_positions: list[LoopPosition] = []

    def set_resume_positions(self, positions: Sequence[LoopPosition]) -> None:
        """Loops that begin from now on are to go on from these."""
        self._resume_positions = list(positions)

    @property
    def is_resuming(self) -> bool:
        return bool(self._resume_positions)

    def push(self, loop: Loop[Any]) -> LoopPosition | None:
        """Where `loop` was. Raises LookupError when the script's loops are not those of the checkpoint.

        The last loop of the checkpoint counts as under way also where it was finished: where its total has
        grown since, as with more epochs, it goes on from the turns that are done. Nothing came after it, so
        its state is the one to go on from.
        """
        depth = len(self.active)
        self.active.append(loop)
        self._finished_positions.append([])
        if not self._resume_positions:
            return None
        found = self._resume_positions[0]
        if (found.name, found.depth) != (loop.name, depth):
            self._resume_positions.clear()
            raise LookupError(f"`{loop.name}` begins where the checkpoint was in `{found.name}`")
        if found.complete > 1:
            self._resume_positions[0] = replace(found, complete=found.complete - 1)
            return found
        del self._resume_positions[0]
        return found if self._resume_positions else replace(found, complete=0)

    def record_iteration(self, loop: Loop[Any]) -> None:
        """A turn of `loop` is over, and with it all that ran inside."""
        self._truncate(loop, count=True)

    def pop(self, loop: Loop[Any], *, finished: bool) -> None:
        if loop not in self.active:
            return
        depth = self.active.index(loop)
        self._truncate(loop, count=False)
        if not finished:
            return
        beside = self._finished_positions[depth]
        times = 1
        if beside and beside[-1].name == loop.name:
            times += beside.pop().complete
        beside.append(LoopPosition(loop.name, depth, loop.iterations, times, loop.rng_state))

    def _truncate(self, loop: Loop[Any], *, count: bool) -> None:
        depth = self.active.index(loop)
        del self.active[depth + 1 if count else depth :]
        del self._finished_positions[depth + 1 :]
        if count:
            self._finished_positions.append([])

    def positions(self) -> list[LoopPosition]:
        """What a checkpoint made now has to remember."""
        found: list[LoopPosition] = []
        for depth, through in enumerate(self._finished_positions):
            found += through
            if depth < len(self.active):
                loop = self.active[depth]
                found.append(LoopPosition(loop.name, depth, loop.iterations, 0, loop.rng_state))
        return found

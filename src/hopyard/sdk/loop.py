"""`hop.loop`: a loop that goes on where the checkpoint left off.

`Trail` is the pure part: which loops are through, which are under way, how far. It is what a checkpoint
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from hopyard.errors import SpecError
from hopyard.sdk.checkpoints import Position

T = TypeVar("T")


class Keeper(Protocol):
    """What a loop tells whoever keeps the checkpoints."""

    def entered(self, loop: Loop[Any]) -> Position | None:
        """A loop begins; where it was when the checkpoint was made, None to begin at the beginning."""

    def skipped(self, loop: Loop[Any]) -> None:
        """A resumed loop is past what was done before; what comes next is new."""

    def replay(self, position: Position) -> None:
        """The items of a resumed loop are about to be drawn again, to be passed over."""

    def turned(self, loop: Loop[Any]) -> None:
        """A turn is over: a safe point."""

    def left(self, loop: Loop[Any], *, finished: bool) -> None:
        """A loop is over: because nothing is left of it (`finished`), or by `break` or an exception."""


class Loop(Generic[T]):
    """What `hop.loop` returns: iterate over it once. `len()` is that of the iterable."""

    def __init__(self, iterable: Iterable[T], keeper: Keeper, *, every: int, name: str) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise SpecError(
                f"hop.loop: every={every!r}",
                hints=("it counts turns between checkpoints: a whole number from 1",),
            )
        self.name, self.every, self.done = name, every, 0
        self.unsaved = False  # whether turns were made since the keeper saved this loop
        self.total = len(iterable) if isinstance(iterable, Sized) else None
        # set by the keeper for iterables that draw their order as they begin
        self.chance: dict[str, Any] | None = None
        self._iterable, self._keeper = iterable, keeper

    @property
    def draws(self) -> bool:
        """Whether passing over items has to draw them: all but sequences, which have places."""
        return not isinstance(self._iterable, Sequence)

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError("this loop has no known length")
        return self.total

    def __iter__(self) -> Iterator[T]:
        keeper, finished = self._keeper, False
        position = keeper.entered(self)
        try:
            for item in self._rest(position):
                yield item
                self.done += 1
                keeper.turned(self)
            finished = True
        finally:
            keeper.left(self, finished=finished)

    def _rest(self, position: Position | None) -> Iterable[T]:
        if position is None:
            return self._iterable
        self.done = position.done if self.total is None else min(position.done, self.total)
        if position.finished or self.done == self.total:
            self._keeper.skipped(self)
            return ()
        if isinstance(self._iterable, Sequence):
            rest: Iterable[T] = (self._iterable[i] for i in range(self.done, len(self._iterable)))
        else:
            self._keeper.replay(position)
            rest = iter(self._iterable)
            for _ in islice(rest, self.done):
                pass
        self._keeper.skipped(self)
        return rest


class Trail:
    """The loops that are under way, from the outermost, and those that are through beside them."""

    def __init__(self) -> None:
        self.active: list[Loop[Any]] = []
        # at each depth; what is inside a turn is forgotten as the turn ends
        self._through: list[list[Position]] = [[]]
        self._awaited: list[Position] = []

    def expect(self, positions: Sequence[Position]) -> None:
        """Loops that begin from now on are to go on from these."""
        self._awaited = list(positions)

    @property
    def resuming(self) -> bool:
        return bool(self._awaited)

    def enter(self, loop: Loop[Any]) -> Position | None:
        """Where `loop` was. Raises LookupError when the script's loops are not those of the checkpoint.

        The last loop of the checkpoint counts as under way also where it was finished: where its total has
        grown since, as with more epochs, it goes on from the turns that are done. Nothing came after it, so
        its state is the one to go on from.
        """
        depth = len(self.active)
        self.active.append(loop)
        self._through.append([])
        if not self._awaited:
            return None
        found = self._awaited[0]
        if (found.name, found.depth) != (loop.name, depth):
            self._awaited.clear()
            raise LookupError(f"`{loop.name}` begins where the checkpoint was in `{found.name}`")
        if found.finished > 1:
            self._awaited[0] = replace(found, finished=found.finished - 1)
            return found
        del self._awaited[0]
        return found if self._awaited else replace(found, finished=0)

    def turn(self, loop: Loop[Any]) -> None:
        """A turn of `loop` is over, and with it all that ran inside."""
        self._cut(loop, keep=True)

    def leave(self, loop: Loop[Any], *, finished: bool) -> None:
        if loop not in self.active:
            return
        depth = self.active.index(loop)
        self._cut(loop, keep=False)
        if not finished:
            return
        beside = self._through[depth]
        times = 1
        if beside and beside[-1].name == loop.name:
            times += beside.pop().finished
        beside.append(Position(loop.name, depth, loop.done, times, loop.chance))

    def _cut(self, loop: Loop[Any], *, keep: bool) -> None:
        depth = self.active.index(loop)
        del self.active[depth + 1 if keep else depth :]
        del self._through[depth + 1 :]
        if keep:
            self._through.append([])

    def positions(self) -> list[Position]:
        """What a checkpoint made now has to remember."""
        found: list[Position] = []
        for depth, through in enumerate(self._through):
            found += through
            if depth < len(self.active):
                loop = self.active[depth]
                found.append(Position(loop.name, depth, loop.done, 0, loop.chance))
        return found

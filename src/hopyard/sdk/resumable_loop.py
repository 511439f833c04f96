"""`hop.loop`: a loop that resumes where the checkpoint was made.

`LoopStack` is the pure part: which loops are complete, which are active, and their positions. A checkpoint
stores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from enum import Enum
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Generic, Protocol, TypeVar

from hopyard.errors import SpecError
from hopyard.sdk.checkpoints import LoopPosition
from hopyard.sdk.loop_exit import calling_frame, is_behind_loop, is_left_by_break

T = TypeVar("T")


class LoopExit(Enum):
    """How a loop ended."""

    EXHAUSTED = "exhausted"
    STOPPED = "stopped"  # by `break` or `return`
    FAILED = "failed"  # by an exception


class LoopObserver(Protocol):
    """Receives the events of a loop; the session implements it to save checkpoints."""

    def on_enter(self, loop: Loop[Any]) -> LoopPosition | None:
        """A loop begins. Returns its position in the checkpoint, or None to begin at the start."""

    def on_caught_up(self, loop: Loop[Any]) -> None:
        """A resumed loop has skipped the completed iterations; the next ones are new."""

    def on_replay(self, loop: Loop[Any], position: LoopPosition) -> None:
        """The completed items of a resumed loop are about to be drawn again and skipped."""

    def on_iteration(self, loop: Loop[Any]) -> None:
        """An iteration is over: a safe point."""

    def on_exit(self, loop: Loop[Any], how: LoopExit) -> None:
        """A loop is over."""


class Loop(Generic[T]):
    """The result of `hop.loop`: iterate over it once. `len()` is that of the iterable."""

    def __init__(self, iterable: Iterable[T], observer: LoopObserver, *, save_every: int, name: str) -> None:
        if isinstance(save_every, bool) or not isinstance(save_every, int) or save_every < 1:
            raise SpecError(
                f"hop.loop: every={save_every!r}",
                hints=("give the number of iterations between checkpoints, a whole number from 1",),
            )
        self.name, self.save_every, self.iterations = name, save_every, 0
        self.has_unsaved_iterations = False  # whether iterations ran since this loop was last saved
        self.total = _length(iterable)
        self.is_inside = False  # whether an iteration has begun and is not over
        # set by the observer for iterables that draw their order at the start
        self.rng_state: dict[str, Any] | None = None
        self.iterable, self._observer = iterable, observer
        self._consumer: CodeType | None = None  # the code with the `for` statement, and its line
        self._line = 0

    @property
    def must_iterate_skipped(self) -> bool:
        """Whether skipped items must be drawn: true for all iterables except sequences, which can
        be indexed."""
        return not isinstance(self.iterable, Sequence)

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError("this loop has no known length")
        return self.total

    def __iter__(self) -> Iterator[T]:
        observer, how = self._observer, LoopExit.FAILED
        frame = calling_frame()
        if frame is not None:
            self._consumer, self._line = frame.f_code, frame.f_lineno
            del frame  # it refers to this iterator
        position = observer.on_enter(self)
        try:
            for item in self._remaining(position):
                self.is_inside = True
                yield item
                self.is_inside = False
                self.iterations += 1
                observer.on_iteration(self)
            was_stopped = position is not None and position.complete and position.stopped
            how = LoopExit.STOPPED if was_stopped else LoopExit.EXHAUSTED
        except GeneratorExit:
            if self.is_inside and is_left_by_break(calling_frame(), self._consumer):
                how = LoopExit.STOPPED
                self.count_interrupted()
            raise
        finally:
            observer.on_exit(self, how)

    def is_left_before_exit(self, main: FrameType) -> bool:
        """Returns whether the script with this frame left this loop by `break`, then ended by `sys.exit`."""
        return self.is_inside and is_behind_loop(main, self._consumer, self._line)

    def count_interrupted(self) -> None:
        """Counts the iteration that the loop was left in: it has changed the state."""
        self.is_inside = False
        self.iterations += 1
        self.has_unsaved_iterations = True

    def _remaining(self, position: LoopPosition | None) -> Iterable[T]:
        if position is None:
            return self.iterable
        self.iterations = position.iterations if self.total is None else min(position.iterations, self.total)
        if position.complete or self.iterations == self.total:
            self._observer.on_caught_up(self)
            return ()
        if isinstance(self.iterable, Sequence):
            rest: Iterable[T] = (self.iterable[i] for i in range(self.iterations, len(self.iterable)))
        else:
            self._observer.on_replay(self, position)
            rest = iter(self.iterable)
            for _ in islice(rest, self.iterations):
                pass
        self._observer.on_caught_up(self)
        return rest


def _length(iterable: object) -> int | None:
    """Returns the length of an iterable; None if it has none, as a loader over a stream."""
    try:
        return len(iterable) if isinstance(iterable, Sized) else None
    except TypeError:
        return None


class LoopStack:
    """The active loops, from the outermost, and the completed loops beside them."""

    def __init__(self) -> None:
        self.active: list[Loop[Any]] = []
        # at each depth; positions inside an iteration are dropped when the iteration ends
        self._finished_positions: list[list[LoopPosition]] = [[]]
        self._resume_positions: list[LoopPosition] = []
        self._resumes_other_run = False

    def set_resume_positions(self, positions: Sequence[LoopPosition], *, is_other_run: bool = False) -> None:
        """Sets the positions from which the next loops resume. is_other_run: they are those of another run,
        which may continue a loop that was left by `break`."""
        self._resume_positions, self._resumes_other_run = list(positions), is_other_run

    @property
    def is_resuming(self) -> bool:
        return bool(self._resume_positions)

    def push(self, loop: Loop[Any]) -> LoopPosition | None:
        """Adds `loop` and returns its position in the checkpoint. Raises LookupError if the script's loops
        differ from those of the checkpoint.

        The last loop of the checkpoint counts as active even if it was finished. If its total has grown
        since, as with more epochs, it continues after the completed iterations. No loop came after it, so its
        state is the right one. A loop that was left by `break` is over for its run; a fork continues it.
        """
        depth = len(self.active)
        self.active.append(loop)
        self._finished_positions.append([])
        if not self._resume_positions:
            return None
        position = self._resume_positions[0]
        if (position.name, position.depth) != (loop.name, depth):
            self._resume_positions.clear()
            raise LookupError(f"`{loop.name}` begins where the checkpoint was in `{position.name}`")
        if position.complete > 1:
            self._resume_positions[0] = replace(position, complete=position.complete - 1)
            return position
        del self._resume_positions[0]
        if self._resume_positions or (position.stopped and not self._resumes_other_run):
            return position
        return replace(position, complete=0)

    def record_iteration(self, loop: Loop[Any]) -> None:
        """Records that an iteration of `loop` is over, with all loops that ran inside it."""
        self._truncate(loop, count=True)

    def pop(self, loop: Loop[Any], how: LoopExit) -> None:
        if loop not in self.active:
            return
        depth = self.active.index(loop)
        self._truncate(loop, count=False)
        if how is LoopExit.FAILED:
            return
        finished_positions = self._finished_positions[depth]
        times = 1
        if finished_positions and finished_positions[-1].name == loop.name:
            times += finished_positions.pop().complete
        finished_positions.append(
            LoopPosition(
                loop.name, depth, loop.iterations, times, loop.rng_state, stopped=how is LoopExit.STOPPED
            )
        )

    def _truncate(self, loop: Loop[Any], *, count: bool) -> None:
        depth = self.active.index(loop)
        del self.active[depth + 1 if count else depth :]
        del self._finished_positions[depth + 1 :]
        if count:
            self._finished_positions.append([])

    def positions(self) -> list[LoopPosition]:
        """Returns the positions that a checkpoint made now must store."""
        positions: list[LoopPosition] = []
        for depth, finished_positions in enumerate(self._finished_positions):
            positions += finished_positions
            if depth < len(self.active):
                loop = self.active[depth]
                positions.append(LoopPosition(loop.name, depth, loop.iterations, 0, loop.rng_state))
        return positions

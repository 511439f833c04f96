"""Attempts that should end: asked once, and again when they did not end in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.controller.effects import Effects, guard_effect
from hopyard.domain.cluster import PREEMPT_GRACE_S
from hopyard.domain.ids import AttemptId
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.engine import Engine

DEFAULT_GRACE = timedelta(seconds=10)
PREEMPT_GRACE = timedelta(seconds=PREEMPT_GRACE_S)
ASK_AGAIN = timedelta(seconds=10)  # beyond its grace


@dataclass(frozen=True, slots=True)
class _Asked:
    at: datetime
    again_at: datetime
    preempt: bool


class Endings:
    """asking: told each time that the engine is asked, so that somebody looks at what comes of it."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        effects: Effects,
        *,
        asking: Callable[[], None],
        preempt_grace: timedelta = PREEMPT_GRACE,
    ) -> None:
        self._engine, self._clock, self._effects, self._asking, self._preempt_grace = (
            engine,
            clock,
            effects,
            asking,
            preempt_grace,
        )
        self._graces: dict[AttemptId, timedelta] = {}
        self._asked: dict[AttemptId, _Asked] = {}
        self._spoken_for: set[AttemptId] = set()

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._asked

    def preempts(self, attempt: AttemptId) -> bool:
        """Whether it was asked to save a checkpoint and make room, and not simply to end."""
        return attempt in self._asked and self._asked[attempt].preempt

    def grace(self, attempt: AttemptId) -> timedelta:
        """How long it is given to end once it is asked."""
        return self._graces.get(attempt, self._preempt_grace if self.preempts(attempt) else DEFAULT_GRACE)

    def ask(self, attempt: AttemptId, *, preempt: bool = False) -> None:
        """A stop that follows a preemption is asked at once: the user wants it to end, whatever becomes of
        the checkpoint."""
        now, before = self._clock.now(), self._asked.get(attempt)
        if before is not None and before.at <= now < before.again_at and (preempt or not before.preempt):
            return
        grace = self._graces.get(attempt, self._preempt_grace if preempt else DEFAULT_GRACE)
        self._asked[attempt] = _Asked(now, now + grace + ASK_AGAIN, preempt)
        self._asking()
        self._effects.spawn(guard_effect(self._engine.stop(attempt, grace=grace, preempt=preempt)))

    def remind(self, attempt: AttemptId, *, preempt: bool) -> None:
        """It is written down that it should end. Nobody may have asked it yet; who did knows better how."""
        if attempt not in self._spoken_for:
            self.ask(attempt, preempt=preempt or self.preempts(attempt))

    @contextmanager
    def speaking_for(self, attempt: AttemptId | None) -> Iterator[None]:
        """While it is written down that it should end, which is before it is asked: meanwhile nobody else
        asks it."""
        meant = set[AttemptId]() if attempt is None else {attempt} - self._spoken_for
        self._spoken_for |= meant
        try:
            yield
        finally:
            self._spoken_for -= meant

    def ask_within(self, attempt: AttemptId, grace: timedelta, *, preempt: bool = False) -> None:
        """A user's word on how long it may take; it is asked at once, again where it was asked before."""
        self._graces[attempt] = grace
        self._asked.pop(attempt, None)
        self.ask(attempt, preempt=preempt)

    def ask_anew(self, attempt: AttemptId) -> None:
        """It was asked to end while the engine did not know it yet."""
        before = self._asked.pop(attempt, None)
        if before is not None:
            self.ask(attempt, preempt=before.preempt)

    def ended(self, attempt: AttemptId) -> None:
        self._asked.pop(attempt, None)

    def keep_graces(self, live: Collection[AttemptId]) -> None:
        for attempt in [attempt for attempt in self._graces if attempt not in live]:
            del self._graces[attempt]

    def keep(self, known: Collection[AttemptId]) -> None:
        """Forget about attempts that neither the store nor the engine knows any more."""
        self._asked = {attempt: asked for attempt, asked in self._asked.items() if attempt in known}

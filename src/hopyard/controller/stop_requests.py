"""Attempts that should end: asked once, and again when they did not end in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.controller.background import BackgroundEffects, run_logging_errors
from hopyard.domain.cluster import PREEMPT_GRACE_S
from hopyard.domain.ids import AttemptId
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.engine import Engine

DEFAULT_GRACE = timedelta(seconds=10)
PREEMPT_GRACE = timedelta(seconds=PREEMPT_GRACE_S)
STOP_RETRY_INTERVAL = timedelta(seconds=10)  # beyond its grace


@dataclass(frozen=True, slots=True)
class _StopState:
    requested_at: datetime
    retry_at: datetime
    preempt: bool


class StopRequests:
    """on_request: told each time that the engine is asked, so that somebody looks at what comes of it."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        background: BackgroundEffects,
        *,
        on_request: Callable[[], None],
        preempt_grace: timedelta = PREEMPT_GRACE,
    ) -> None:
        self._engine, self._clock, self._background, self._on_request, self._preempt_grace = (
            engine,
            clock,
            background,
            on_request,
            preempt_grace,
        )
        self._graces: dict[AttemptId, timedelta] = {}
        self._requests: dict[AttemptId, _StopState] = {}
        self._being_recorded: set[AttemptId] = set()

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._requests

    def is_preempted(self, attempt: AttemptId) -> bool:
        """Whether it was asked to save a checkpoint and make room, and not simply to end."""
        return attempt in self._requests and self._requests[attempt].preempt

    def grace(self, attempt: AttemptId) -> timedelta:
        """How long it is given to end once it is asked."""
        return self._graces.get(attempt, self._preempt_grace if self.is_preempted(attempt) else DEFAULT_GRACE)

    def request_stop(self, attempt: AttemptId, *, preempt: bool = False) -> None:
        """A stop that follows a preemption is asked at once: the user wants it to end, whatever becomes of
        the checkpoint."""
        now, before = self._clock.now(), self._requests.get(attempt)
        if (
            before is not None
            and before.requested_at <= now < before.retry_at
            and (preempt or not before.preempt)
        ):
            return
        grace = self._graces.get(attempt, self._preempt_grace if preempt else DEFAULT_GRACE)
        self._requests[attempt] = _StopState(now, now + grace + STOP_RETRY_INTERVAL, preempt)
        self._on_request()
        self._background.spawn(run_logging_errors(self._engine.stop(attempt, grace=grace, preempt=preempt)))

    def ensure_requested(self, attempt: AttemptId, *, preempt: bool) -> None:
        """It is written down that it should end. Nobody may have asked it yet; who did knows better how."""
        if attempt not in self._being_recorded:
            self.request_stop(attempt, preempt=preempt or self.is_preempted(attempt))

    @contextmanager
    def recording(self, attempt: AttemptId | None) -> Iterator[None]:
        """While it is written down that it should end, which is before it is asked: meanwhile nobody else
        asks it."""
        meant = set[AttemptId]() if attempt is None else {attempt} - self._being_recorded
        self._being_recorded |= meant
        try:
            yield
        finally:
            self._being_recorded -= meant

    def request_stop_within(self, attempt: AttemptId, grace: timedelta, *, preempt: bool = False) -> None:
        """A user's word on how long it may take; it is asked at once, again where it was asked before."""
        self._graces[attempt] = grace
        self._requests.pop(attempt, None)
        self.request_stop(attempt, preempt=preempt)

    def retry_stop(self, attempt: AttemptId) -> None:
        """It was asked to end while the engine did not know it yet."""
        before = self._requests.pop(attempt, None)
        if before is not None:
            self.request_stop(attempt, preempt=before.preempt)

    def discard(self, attempt: AttemptId) -> None:
        self._requests.pop(attempt, None)

    def retain_graces(self, live: Collection[AttemptId]) -> None:
        for attempt in [attempt for attempt in self._graces if attempt not in live]:
            del self._graces[attempt]

    def retain(self, attempts: Collection[AttemptId]) -> None:
        """Forget about attempts that neither the store nor the engine knows any more."""
        self._requests = {attempt: asked for attempt, asked in self._requests.items() if attempt in attempts}

"""Requests stops of attempts: once, and again when an attempt did not end in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.controller.background import BackgroundEffects, run_logging_errors
from hopyard.domain.cluster import PREEMPT_GRACE_S
from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import DEFAULT_STOP_SIGNAL
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
    """on_request: called for each request to the engine, so that the result is observed soon."""

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
        self._signals: dict[AttemptId, str] = {}
        self._requests: dict[AttemptId, _StopState] = {}
        self._being_recorded: set[AttemptId] = set()

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._requests

    def is_preempted(self, attempt: AttemptId) -> bool:
        """Returns whether the attempt was preempted (it then saves a checkpoint), and not simply stopped."""
        return attempt in self._requests and self._requests[attempt].preempt

    def grace(self, attempt: AttemptId) -> timedelta:
        """Returns the time that the attempt has to end after a request."""
        return self._graces.get(attempt, self._preempt_grace if self.is_preempted(attempt) else DEFAULT_GRACE)

    def signal(self, attempt: AttemptId) -> str:
        """Returns the signal that the processes of the attempt get."""
        return self._signals.get(attempt, DEFAULT_STOP_SIGNAL)

    def request_stop(self, attempt: AttemptId, *, preempt: bool = False) -> None:
        """Requests a stop. A repeated request is ignored until the retry time. A stop after a preemption is
        requested at once: the user wants the run to end, with or without a checkpoint."""
        now, previous = self._clock.now(), self._requests.get(attempt)
        if (
            previous is not None
            and previous.requested_at <= now < previous.retry_at
            and (preempt or not previous.preempt)
        ):
            return
        grace = self._graces.get(attempt, self._preempt_grace if preempt else DEFAULT_GRACE)
        self._requests[attempt] = _StopState(now, now + grace + STOP_RETRY_INTERVAL, preempt)
        self._on_request()
        request = self._engine.stop(attempt, grace=grace, preempt=preempt, signal=self.signal(attempt))
        self._background.spawn(run_logging_errors(request))

    def ensure_requested(self, attempt: AttemptId, *, preempt: bool) -> None:
        """Requests the recorded stop of an attempt, if that is not done yet. An earlier request keeps its
        kind, since it was made with more information."""
        if attempt not in self._being_recorded:
            self.request_stop(attempt, preempt=preempt or self.is_preempted(attempt))

    @contextmanager
    def recording(self, attempt: AttemptId | None) -> Iterator[None]:
        """A block in which the stop of an attempt is recorded, before it is requested. Meanwhile
        `ensure_requested` does not request it."""
        added = set[AttemptId]() if attempt is None else {attempt} - self._being_recorded
        self._being_recorded |= added
        try:
            yield
        finally:
            self._being_recorded -= added

    def request_stop_within(
        self,
        attempt: AttemptId,
        grace: timedelta,
        *,
        preempt: bool = False,
        signal: str = DEFAULT_STOP_SIGNAL,
    ) -> None:
        """Requests a stop with the grace and the signal that a user gave, even if a stop was requested
        before."""
        self._graces[attempt], self._signals[attempt] = grace, signal
        self._requests.pop(attempt, None)
        self.request_stop(attempt, preempt=preempt)

    def retry_stop(self, attempt: AttemptId) -> None:
        """Repeats a stop that was requested before the engine knew the attempt."""
        previous = self._requests.pop(attempt, None)
        if previous is not None:
            self.request_stop(attempt, preempt=previous.preempt)

    def discard(self, attempt: AttemptId) -> None:
        self._requests.pop(attempt, None)

    def retain_graces(self, live: Collection[AttemptId]) -> None:
        for attempt in [attempt for attempt in self._graces if attempt not in live]:
            del self._graces[attempt]
            self._signals.pop(attempt, None)

    def retain(self, attempts: Collection[AttemptId]) -> None:
        """Drops attempts that neither the store nor the engine knows any more."""
        self._requests = {attempt: state for attempt, state in self._requests.items() if attempt in attempts}

"""Requests stops of attempts: once, and again when an attempt did not end in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.controller.background import BackgroundEffects, run_logging_errors
from hopyard.domain.cluster import PREEMPT_GRACE_S
from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import DEFAULT_STOP_ORDER, StopOrder
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.engine import Engine

PREEMPT_GRACE = timedelta(seconds=PREEMPT_GRACE_S)
STOP_RETRY_INTERVAL = timedelta(seconds=10)  # beyond its grace


@dataclass(frozen=True, slots=True)
class _StopState:
    requested_at: datetime
    retry_at: datetime
    order: StopOrder


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
        self._orders: dict[AttemptId, StopOrder] = {}  # of users
        self._requests: dict[AttemptId, _StopState] = {}
        self._being_recorded: set[AttemptId] = set()

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._requests

    def is_preempted(self, attempt: AttemptId) -> bool:
        """Returns whether the attempt was preempted (it then saves a checkpoint), and not simply stopped."""
        return attempt in self._requests and self._requests[attempt].order.requests_checkpoint

    def order(self, attempt: AttemptId) -> StopOrder:
        """Returns the order of an ending attempt."""
        state = self._requests.get(attempt)
        return self._order(attempt, preempt=False) if state is None else state.order

    def request_stop(self, attempt: AttemptId, *, preempt: bool = False) -> None:
        """Requests a stop. A repeated request is ignored until the retry time. A stop after a preemption is
        requested at once: the user wants the run to end, with or without a checkpoint."""
        now, previous = self._clock.now(), self._requests.get(attempt)
        if (
            previous is not None
            and previous.requested_at <= now < previous.retry_at
            and (preempt or not previous.order.requests_checkpoint)
        ):
            return
        order = self._order(attempt, preempt=preempt)
        retry_at = now + timedelta(seconds=order.grace_s) + STOP_RETRY_INTERVAL
        self._requests[attempt] = _StopState(now, retry_at, order)
        self._on_request()
        self._background.spawn(run_logging_errors(self._engine.stop(attempt, order)))

    def _order(self, attempt: AttemptId, *, preempt: bool) -> StopOrder:
        """Returns the user's order, combined with a request that has no grace and no signal of its own."""
        given = self._orders.get(attempt)
        if given is not None:
            return given.merged_with(StopOrder.for_request(given.grace_s, preempt=preempt))
        if preempt:
            return StopOrder.for_preemption(self._preempt_grace.total_seconds())
        return DEFAULT_STOP_ORDER

    def ensure_requested(self, attempt: AttemptId, *, preempt: bool, order: StopOrder | None = None) -> None:
        """Requests the recorded stop of an attempt, if that is not done yet. An earlier request keeps its
        kind, since it was made with more information.

        order: the recorded order of a user. This server does not know it if it was restarted, or if another
        server got it.
        """
        if attempt in self._being_recorded:
            return
        if order is None or order == self._orders.get(attempt):
            self.request_stop(attempt, preempt=preempt or self.is_preempted(attempt))
        else:
            self._replace_order(attempt, order)

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

    def apply_order(self, attempt: AttemptId, order: StopOrder) -> None:
        """Requests a stop by the order of a user, even if a stop was requested before. An earlier order is
        merged with it."""
        earlier = self._orders.get(attempt)
        self._replace_order(attempt, order if earlier is None else earlier.merged_with(order))

    def _replace_order(self, attempt: AttemptId, order: StopOrder) -> None:
        self._orders[attempt] = order
        self._requests.pop(attempt, None)
        self.request_stop(attempt, preempt=order.requests_checkpoint)

    def retry_stop(self, attempt: AttemptId) -> None:
        """Repeats a stop that was requested before the engine knew the attempt."""
        previous = self._requests.pop(attempt, None)
        if previous is not None:
            self.request_stop(attempt, preempt=previous.order.requests_checkpoint)

    def discard(self, attempt: AttemptId) -> None:
        self._requests.pop(attempt, None)

    def retain_orders(self, live: Collection[AttemptId]) -> None:
        self._orders = {attempt: order for attempt, order in self._orders.items() if attempt in live}

    def retain(self, attempts: Collection[AttemptId]) -> None:
        """Drops attempts that neither the store nor the engine knows any more."""
        self._requests = {attempt: state for attempt, state in self._requests.items() if attempt in attempts}

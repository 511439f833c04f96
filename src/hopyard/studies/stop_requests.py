"""The requests of users to stop single trials, which the server keeps as events of the study."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from hopyard.api_client.client import Client
from hopyard.api_client.run_access import RunAccess
from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.run import RunEventKind, trial_of_sentence
from hopyard.errors import HopyardError

_POLL_INTERVAL_S = 2.0


class TrialStopRequests:
    """Reads the requests in a thread: a server that does not answer must not delay the driver."""

    def __init__(self, run: RunId, access: RunAccess) -> None:
        self._run, self._access = run, access
        self._trials: frozenset[TrialId] = frozenset()
        self._events_read = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="stop-requests", daemon=True)
        self._thread.start()

    @property
    def trials(self) -> frozenset[TrialId]:
        """The trials that users have stopped."""
        return self._trials

    def close(self) -> None:
        self._closing.set()

    def _poll(self) -> None:
        client: Client | None = None
        while not self._closing.wait(_POLL_INTERVAL_S):
            try:
                if client is None:
                    client = self._access.client()
                self.read(client)
            except (HopyardError, OSError):
                client = None  # the address or the token may be new

    def read(self, client: Client) -> None:
        """Reads the events since the last call. Raises HopyardError and OSError."""
        events = list(client.iterate_run_events(self._run, after=self._events_read))
        self._trials |= stopped_trials(events)
        self._events_read += len(events)


def stopped_trials(events: Iterable[Mapping[str, Any]]) -> frozenset[TrialId]:
    """Returns the trials that these events stop."""
    return frozenset(
        TrialId(trial_of_sentence(str(event["detail"])))
        for event in events
        if event["kind"] == RunEventKind.STOP_TRIAL
    )

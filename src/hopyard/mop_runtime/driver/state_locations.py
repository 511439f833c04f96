"""The stores that have each state, and the states that are still needed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path

from hopyard.errors import HopyardError
from hopyard.mop_runtime.driver.state_refs import StateRefs
from hopyard.mop_runtime.driver.worker_registry import RegisteredWorker, WorkerRegistry
from hopyard.mop_runtime.messages import DropStates, SendStateToDriver
from hopyard.mop_runtime.transport.driver_server import StateReceived, StateRequested
from hopyard.trial_state.shared_memory_store import StateStore

_SEND_TIMEOUT_S = 5.0  # then the request to the holder is repeated: perhaps it could not connect
_MAX_DAMAGED_COPIES = 2  # copies of a state with a wrong digest: one may be damaged on the way


class StateLocations:
    """store: the driver's own, which the workers on its host share. address: where the driver serves it.
    checkpoint_files: the file of each state in the checkpoint that this attempt started from. reject_waiters:
    notifies waiting requests that no worker has the state."""

    def __init__(
        self,
        store: StateStore,
        address: str,
        checkpoint_files: Mapping[str, Path],
        workers: WorkerRegistry,
        log_message: Callable[[str], None],
        reject_waiters: Callable[[str], None],
    ) -> None:
        self._store, self._address, self._workers, self._log_message, self._reject_waiters = (
            store,
            address,
            workers,
            log_message,
            reject_waiters,
        )
        self._checkpoint_files = dict(checkpoint_files)
        self._refs = StateRefs()
        self._unreferenced: list[str] = []
        self._stores_by_state: dict[str, set[str]] = {}
        # by state: the connection and store of the holder that was requested to send it, and when
        self._senders: dict[str, tuple[int, str, float]] = {}
        self._failed_transfers: set[str] = set()  # states with a logged transfer error
        self._damage_counts: Counter[tuple[str, str]] = Counter()  # by state and store
        for name in store.list_states():
            self.add_location(name, store.id)

    def add_location(self, state: str, store_id: str) -> None:
        self._stores_by_state.setdefault(state, set()).add(store_id)

    def remove_location(self, state: str, store_id: str) -> None:
        self._stores_by_state.get(state, set()).discard(store_id)

    def sources(self, state: str, worker: RegisteredWorker) -> tuple[str, ...]:
        """Returns where this worker can fetch the state; () if it is in the worker's own store. The driver
        serves it if necessary."""
        stores = self._stores_by_state.get(state, set())
        if not state or worker.hello.store_id in stores:
            return ()
        holders = tuple(holder.hello.address for holder in self._workers.workers_of_stores(frozenset(stores)))
        return (self._address, *holders) if self._store.id in stores else (*holders, self._address)

    def handle(self, event: StateRequested | StateReceived) -> None:
        """Handles requests for states in the driver's store: their holder cannot be reached directly, or the
        driver saves them."""
        state = event.state
        if isinstance(event, StateRequested):
            self._request_from_worker(state)
            return
        _, store_id, _ = self._senders.pop(state, (0, "", 0.0))
        # logged once, because the transfer is repeated
        if event.error and not event.missing and state not in self._failed_transfers:
            self._log_message(f"state {state} could not be fetched from its worker: {event.error}")
        self._failed_transfers = (
            self._failed_transfers | {state} if event.error else self._failed_transfers - {state}
        )
        if event.missing:
            self.remove_location(state, store_id)
        elif event.damaged:
            self._count_damage(state, store_id)
        elif event.error:
            return
        elif self._refs.is_referenced(state):
            self.add_location(state, self._store.id)
        else:  # it is no longer needed
            self._store.drop([state])

    def _count_damage(self, state: str, store_id: str) -> None:
        """A copy that is damaged repeatedly counts as lost, so that no unit starts from it."""
        self._damage_counts[state, store_id] += 1
        if self._damage_counts[state, store_id] < _MAX_DAMAGED_COPIES:
            return
        del self._damage_counts[state, store_id]
        self.remove_location(state, store_id)
        workers = self._workers.workers_of_stores(frozenset({store_id}))
        self._log_message(
            f"state {state} is damaged on {workers[0].hello.host if workers else 'its host'}: that copy is "
            "given up"
        )
        for worker in workers:
            self._workers.send(worker, DropStates((state,)))

    def _request_from_worker(self, state: str) -> None:
        if self._store.has(state):
            return
        holders = self._reachable_holders(state)
        if not holders:
            self._reject_waiters(state)
            return
        by_connection = {item.connection: item for item in holders if item.connection is not None}
        current_connection, _, requested_at = self._senders.get(state, (0, "", 0.0))
        if by_connection and (
            current_connection not in by_connection or time.monotonic() - requested_at > _SEND_TIMEOUT_S
        ):
            connection, holder = min(
                by_connection.items(), key=lambda item: item[0] == current_connection
            )  # prefers another connection
            self._senders[state] = connection, holder.hello.store_id, time.monotonic()
            self._workers.send(holder, SendStateToDriver(state))

    def _reachable_holders(self, state: str) -> list[RegisteredWorker]:
        """Returns the workers that could send it, except those that are about to be declared lost."""
        return [
            worker
            for worker in self._workers.workers_of_stores(frozenset(self._stores_by_state.get(state, set())))
            if not self._workers.loss_reason(worker)
        ]

    def is_available(self, state: str) -> bool:
        """Returns whether any store has the state; imports it from the checkpoint if necessary."""
        if (
            not state
            or self._store.id in self._stores_by_state.get(state, set())
            or self._reachable_holders(state)
        ):
            return True
        file = self._checkpoint_files.get(state)
        if file is None:
            return False
        try:
            self._store.import_file(state, file)
        except (OSError, HopyardError) as error:
            self._log_message(f"state {state} of the checkpoint cannot be read: {error}")
            del self._checkpoint_files[state]
            return False
        self.add_location(state, self._store.id)
        return True

    def set_refs(self, holder: Hashable, states: Iterable[str]) -> None:
        """Replaces the references of this holder; unreferenced states are dropped with the next
        `drop_unreferenced`."""
        self._unreferenced += self._refs.set_refs(holder, states)

    def drop_unreferenced(self) -> None:
        """Drops unreferenced states from all stores."""
        if self._unreferenced:
            candidates, self._unreferenced = self._unreferenced, []
            self.drop([state for state in candidates if not self._refs.is_referenced(state)])

    def drop(self, states: Iterable[str]) -> None:
        states_by_store: dict[str, list[str]] = {}
        for state in states:
            for store_id in sorted(self._stores_by_state.pop(state, set())):
                states_by_store.setdefault(store_id, []).append(state)
        for worker in self._workers:
            if worker.hello.store_id in states_by_store:
                self._workers.send(worker, DropStates(tuple(states_by_store[worker.hello.store_id])))
        self._store.drop(states_by_store.get(self._store.id, []))

    def drop_all_unreferenced(self, except_states: Iterable[str]) -> None:
        """Drops what earlier drivers left. except_states: states of active units."""
        self.drop(
            [
                state
                for state in self._stores_by_state
                if not self._refs.is_referenced(state) and state not in set(except_states)
            ]
        )

"""The stores that hold each state, and the states that are still needed."""

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

_SEND_TIMEOUT_S = 5.0  # then the holder of the state is asked again: perhaps it could not connect
_MAX_DAMAGED_COPIES = (
    2  # times that a copy of a state comes with a wrong digest: once it may have been the way
)


class StateLocations:
    """store: the driver's own, which is that of the workers on its host. address: where the driver serves it.
    checkpoint_files: state -> file, of the checkpoint that this attempt began with. reject_waiters: tells
    those who wait for a state to lie on the driver's shelf that nobody has it."""

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
        # by state: the connection and store of the holder that was asked to send it, and when
        self._senders: dict[str, tuple[int, str, float]] = {}
        self._failed_transfers: set[str] = set()  # of which was said that they could not be had
        self._damage_counts: Counter[tuple[str, str]] = Counter()  # by state and shelf
        for name in store.list_states():
            self.add_location(name, store.id)

    def add_location(self, state: str, store_id: str) -> None:
        self._stores_by_state.setdefault(state, set()).add(store_id)

    def remove_location(self, state: str, store_id: str) -> None:
        self._stores_by_state.get(state, set()).discard(store_id)

    def sources(self, state: str, worker: RegisteredWorker) -> tuple[str, ...]:
        """Where this worker finds it, () where it lies on its own shelf.
        The driver has it brought where it must."""
        shelves = self._stores_by_state.get(state, set())
        if not state or worker.hello.store_id in shelves:
            return ()
        holders = tuple(one.hello.address for one in self._workers.workers_of_stores(frozenset(shelves)))
        return (self._address, *holders) if self._store.id in shelves else (*holders, self._address)

    def handle(self, event: StateRequested | StateReceived) -> None:
        """What becomes of states that the driver is asked for, because their holder cannot be reached or the
        driver saves them."""
        state = event.state
        if isinstance(event, StateRequested):
            self._request_from_worker(state)
            return
        _, shelf, _ = self._senders.pop(state, (0, "", 0.0))
        # it is tried again, and again
        if event.error and not event.missing and state not in self._failed_transfers:
            self._log_message(f"state {state} could not be fetched from its worker: {event.error}")
        self._failed_transfers = (
            self._failed_transfers | {state} if event.error else self._failed_transfers - {state}
        )
        if event.missing:
            self.remove_location(state, shelf)
        elif event.damaged:
            self._count_damage(state, shelf)
        elif event.error:
            return
        elif self._refs.is_referenced(state):
            self.add_location(state, self._store.id)
        else:  # it is no longer needed
            self._store.drop([state])

    def _count_damage(self, state: str, store_id: str) -> None:
        """A copy that comes damaged again and again is as good as lost, and nobody is to begin from it."""
        self._damage_counts[state, store_id] += 1
        if self._damage_counts[state, store_id] < _MAX_DAMAGED_COPIES:
            return
        del self._damage_counts[state, store_id]
        self.remove_location(state, store_id)
        there = self._workers.workers_of_stores(frozenset({store_id}))
        self._log_message(
            f"state {state} is damaged on {there[0].hello.host if there else 'its host'}: that copy is "
            "given up"
        )
        for worker in there:
            self._workers.send(worker, DropStates((state,)))

    def _request_from_worker(self, state: str) -> None:
        if self._store.has(state):
            return
        holders = self._reachable_holders(state)
        if not holders:
            self._reject_waiters(state)
            return
        there = {one.connection: one for one in holders if one.connection is not None}
        asked, _, since = self._senders.get(state, (0, "", 0.0))
        if there and (asked not in there or time.monotonic() - since > _SEND_TIMEOUT_S):
            connection, holder = min(there.items(), key=lambda one: one[0] == asked)  # rather another
            self._senders[state] = connection, holder.hello.store_id, time.monotonic()
            self._workers.send(holder, SendStateToDriver(state))

    def _reachable_holders(self, state: str) -> list[RegisteredWorker]:
        """The workers that could lend it, but for those that are about to be taken for lost."""
        return [
            one
            for one in self._workers.workers_of_stores(frozenset(self._stores_by_state.get(state, set())))
            if not self._workers.loss_reason(one)
        ]

    def is_available(self, state: str) -> bool:
        """Whether anybody has it; one that was saved is brought back for that."""
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
        except (OSError, HopyardError) as lost:
            self._log_message(f"state {state} of the checkpoint cannot be read: {lost}")
            del self._checkpoint_files[state]
            return False
        self.add_location(state, self._store.id)
        return True

    def set_refs(self, holder: Hashable, states: Iterable[str]) -> None:
        """These, and no others any more; what nobody keeps goes with the next `drop_unkept`."""
        self._unreferenced += self._refs.set_refs(holder, states)

    def drop_unreferenced(self) -> None:
        """Everywhere."""
        if self._unreferenced:
            unkept, self._unreferenced = self._unreferenced, []
            self.drop([state for state in unkept if not self._refs.is_referenced(state)])

    def drop(self, states: Iterable[str]) -> None:
        by_shelf: dict[str, list[str]] = {}
        for state in states:
            for shelf in sorted(self._stores_by_state.pop(state, set())):
                by_shelf.setdefault(shelf, []).append(state)
        for worker in self._workers:
            if worker.hello.store_id in by_shelf:
                self._workers.send(worker, DropStates(tuple(by_shelf[worker.hello.store_id])))
        self._store.drop(by_shelf.get(self._store.id, []))

    def drop_all_unreferenced(self, except_states: Iterable[str]) -> None:
        """What earlier drivers left. except_states: states that are being made."""
        self.drop(
            [
                state
                for state in self._stores_by_state
                if not self._refs.is_referenced(state) and state not in set(except_states)
            ]
        )

"""What goes on beside the unit: the next state is brought, the last one's digest computed, memory made ready
and given back."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from hopyard.errors import HopyardError, NotFound
from hopyard.mop_runtime.state_transfer import fetch
from hopyard.mop_runtime.worker.unit_failure import StateMissing
from hopyard.trial_state.digest import digest
from hopyard.trial_state.shared_memory_store import StateStore

log = logging.getLogger("hopyard.mop_runtime.worker")

_MAX_PENDING_DIGESTS = 4  # states whose digest is still to be computed; with more, training waits
_UNIT_GAP_S = 0.03  # two units, where there is a next one
_MAX_PREFETCHED = 2  # states that are read before they are asked for


class BackgroundThread:
    """A thread for what takes long, one thing after another."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def _run(self) -> None:
        while (what := self._tasks.get()) is not None:
            try:
                what()
            except (HopyardError, OSError) as failed:
                log.warning("%s", failed)
            except Exception:  # whatever it was, what comes next must still be done
                log.exception("beside the unit something failed")

    def close(self) -> None:
        """After what it was given before."""
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(10)


class Prefetcher:
    """States that will probably be asked for next, read before that is the case."""

    def __init__(self, store: StateStore, secret: bytes, background: BackgroundThread) -> None:
        self._store, self._secret, self._background = store, secret, background
        self._condition = threading.Condition()
        self._states: OrderedDict[str, memoryview | None] = OrderedDict()  # None: it is on its way
        self._fetched_bytes: dict[str, int] = {}

    def prefetch(self, state: str, sources: Sequence[str]) -> None:
        """Returns at once."""
        with self._condition:
            if state in self._states:
                return
            self._states[state] = None
            while len(self._states) > _MAX_PREFETCHED:
                self._states.popitem(last=False)
        self._background.submit(lambda: self._read(state, sources))

    def _read(self, state: str, sources: Sequence[str]) -> None:
        read: memoryview | None = None
        with self._condition:
            if state not in self._states:
                return
        try:
            fetched = fetch(state, sources, self._secret, self._store)
            read = self._store.read(state)
            with self._condition:
                self._fetched_bytes[state] = self._fetched_bytes.get(state, 0) + fetched
        finally:
            with self._condition:
                if read is None:
                    self._states.pop(state, None)
                elif state in self._states:
                    self._states[state] = read
                self._condition.notify_all()

    def get(self, state: str, sources: Sequence[str]) -> tuple[memoryview, int]:
        """The state's bytes, as of `Shelf.read`, and how many of them came over the network.
        Raises StateLacking, StorageFull."""
        with self._condition:
            self._condition.wait_for(lambda: self._states.get(state, True) is not None)
            read = self._states.pop(state, None)
            fetched = self._fetched_bytes.pop(state, 0)
        if read is None:
            try:
                fetched += fetch(state, sources, self._secret, self._store)
                read = self._store.read(state)
            except NotFound as lacking:
                raise StateMissing(lacking.message) from lacking
        return read, fetched

    def discard(self, states: Sequence[str]) -> None:
        with self._condition:
            for state in states:
                self._states.pop(state, None)
                self._fetched_bytes.pop(state, None)


class DigestQueue:
    """Computes the digests of states that this worker made, and tells them.
    A state is held from `pin_state` on until that is done.

    is_executing: set while a unit is under way. Between two units everything that computes is in the way of
    the next one.
    """

    def __init__(
        self, store: StateStore, report_digest: Callable[[str, str, str], None], is_executing: threading.Event
    ) -> None:
        self._store, self._report_digest, self._is_executing = store, report_digest, is_executing
        self._background = BackgroundThread("worker-namer")
        self._free_slots = threading.Semaphore(_MAX_PENDING_DIGESTS)

    def pin_state(self, unit: str, state: str) -> Callable[[], None]:
        """Call what it returns once the state was told of: it is named then, beside all else."""
        with ExitStack() as entered:
            self._free_slots.acquire()
            entered.callback(self._free_slots.release)
            view = entered.enter_context(self._store.view(state))
            held = entered.pop_all()

        def name() -> None:
            with held:
                self._is_executing.wait(_UNIT_GAP_S)
                found = digest(view)
            self._report_digest(unit, state, found)

        return lambda: self._background.submit(name)

    def close(self) -> None:
        self._background.close()

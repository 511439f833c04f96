"""Background work beside the unit: fetches the next state, computes digests, prepares and frees memory."""

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

_MAX_PENDING_DIGESTS = 4  # states without a computed digest; with more, training waits
_UNIT_GAP_S = 0.03  # the maximum pause between two consecutive units
_MAX_PREFETCHED = 2  # states that are read in advance


class BackgroundThread:
    """A thread that runs slow tasks one after another."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except (HopyardError, OSError) as error:
                log.warning("%s", error)
            except Exception:  # later tasks must still run
                log.exception("a background task failed")

    def close(self) -> None:
        """Ends the thread after the submitted tasks."""
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(10)


class Prefetcher:
    """Reads states that will probably be needed next."""

    def __init__(self, store: StateStore, secret: bytes, background: BackgroundThread) -> None:
        self._store, self._secret, self._background = store, secret, background
        self._condition = threading.Condition()
        self._states: OrderedDict[str, memoryview | None] = OrderedDict()  # None: it is being fetched
        self._fetched_bytes: dict[str, int] = {}

    def prefetch(self, state: str, sources: Sequence[str]) -> None:
        """Starts the fetch and returns at once."""
        with self._condition:
            if state in self._states:
                return
            self._states[state] = None
            while len(self._states) > _MAX_PREFETCHED:
                self._states.popitem(last=False)
        self._background.submit(lambda: self._read(state, sources))

    def _read(self, state: str, sources: Sequence[str]) -> None:
        data: memoryview | None = None
        with self._condition:
            if state not in self._states:
                return
        try:
            fetched = fetch(state, sources, self._secret, self._store)
            data = self._store.read(state)
            with self._condition:
                self._fetched_bytes[state] = self._fetched_bytes.get(state, 0) + fetched
        finally:
            with self._condition:
                if data is None:
                    self._states.pop(state, None)
                elif state in self._states:
                    self._states[state] = data
                self._condition.notify_all()

    def get(self, state: str, sources: Sequence[str]) -> tuple[memoryview, int]:
        """Returns the state's bytes, as `StateStore.read` does, and how many were received over the network.
        Raises StateMissing, StorageFull."""
        with self._condition:
            self._condition.wait_for(lambda: self._states.get(state, True) is not None)
            data = self._states.pop(state, None)
            fetched = self._fetched_bytes.pop(state, 0)
        if data is None:
            try:
                fetched += fetch(state, sources, self._secret, self._store)
                data = self._store.read(state)
            except NotFound as error:
                raise StateMissing(error.message) from error
        return data, fetched

    def discard(self, states: Sequence[str]) -> None:
        with self._condition:
            for state in states:
                self._states.pop(state, None)
                self._fetched_bytes.pop(state, None)


class DigestQueue:
    """Computes and reports the digests of states that this worker produced. A state is pinned from
    `pin_state` until then.

    is_executing: set while a unit runs. Between two units any computation would delay the next one.
    """

    def __init__(
        self, store: StateStore, report_digest: Callable[[str, str, str], None], is_executing: threading.Event
    ) -> None:
        self._store, self._report_digest, self._is_executing = store, report_digest, is_executing
        self._background = BackgroundThread("worker-namer")
        self._free_slots = threading.Semaphore(_MAX_PENDING_DIGESTS)

    def pin_state(self, unit: str, state: str) -> Callable[[], None]:
        """Returns a function that starts the computation of the digest. Call it after the state
        was reported."""
        with ExitStack() as stack:
            self._free_slots.acquire()
            stack.callback(self._free_slots.release)
            view = stack.enter_context(self._store.view(state))
            pinned = stack.pop_all()

        def compute() -> None:
            with pinned:
                self._is_executing.wait(_UNIT_GAP_S)
                state_digest = digest(view)
            self._report_digest(unit, state, state_digest)

        return lambda: self._background.submit(compute)

    def close(self) -> None:
        self._background.close()

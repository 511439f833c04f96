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
from hopyard.studies.states.digest import digest
from hopyard.studies.states.serve import fetch
from hopyard.studies.states.shelf import Shelf
from hopyard.studies.worker.failure import StateLacking

log = logging.getLogger("hopyard.studies.worker")

_UNNAMED = 4  # states whose digest is still to be computed; with more, training waits
_BETWEEN_S = 0.03  # two units, where there is a next one
_AHEAD = 2  # states that are read before they are asked for


class Aside:
    """A thread for what takes long, one thing after another."""

    def __init__(self, name: str) -> None:
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, what: Callable[[], None]) -> None:
        self._todo.put(what)

    def _run(self) -> None:
        while (what := self._todo.get()) is not None:
            try:
                what()
            except (HopyardError, OSError) as failed:
                log.warning("%s", failed)
            except Exception:  # whatever it was, what comes next must still be done
                log.exception("beside the unit something failed")

    def close(self) -> None:
        """After what it was given before."""
        self._todo.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(10)


class Ahead:
    """States that will probably be asked for next, read before that is the case."""

    def __init__(self, shelf: Shelf, secret: bytes, aside: Aside) -> None:
        self._shelf, self._secret, self._aside = shelf, secret, aside
        self._changed = threading.Condition()
        self._wanted: OrderedDict[str, memoryview | None] = OrderedDict()  # None: it is on its way
        self._fetched: dict[str, int] = {}

    def prefetch(self, state: str, sources: Sequence[str]) -> None:
        """Returns at once."""
        with self._changed:
            if state in self._wanted:
                return
            self._wanted[state] = None
            while len(self._wanted) > _AHEAD:
                self._wanted.popitem(last=False)
        self._aside.do(lambda: self._read(state, sources))

    def _read(self, state: str, sources: Sequence[str]) -> None:
        read: memoryview | None = None
        with self._changed:
            if state not in self._wanted:
                return
        try:
            fetched = fetch(state, sources, self._secret, self._shelf)
            read = self._shelf.read(state)
            with self._changed:
                self._fetched[state] = self._fetched.get(state, 0) + fetched
        finally:
            with self._changed:
                if read is None:
                    self._wanted.pop(state, None)
                elif state in self._wanted:
                    self._wanted[state] = read
                self._changed.notify_all()

    def take(self, state: str, sources: Sequence[str]) -> tuple[memoryview, int]:
        """The state's bytes, as of `Shelf.read`, and how many of them came over the network.
        Raises StateLacking, StorageFull."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted.get(state, True) is not None)
            read = self._wanted.pop(state, None)
            fetched = self._fetched.pop(state, 0)
        if read is None:
            try:
                fetched += fetch(state, sources, self._secret, self._shelf)
                read = self._shelf.read(state)
            except NotFound as lacking:
                raise StateLacking(lacking.message) from lacking
        return read, fetched

    def forget(self, states: Sequence[str]) -> None:
        with self._changed:
            for state in states:
                self._wanted.pop(state, None)
                self._fetched.pop(state, None)


class Namer:
    """Computes the digests of states that this worker made, and tells them.
    A state is held from `hold` on until that is done.

    at_work: set while a unit is under way. Between two units everything that computes is in the way of the
    next one.
    """

    def __init__(self, shelf: Shelf, tell: Callable[[str, str, str], None], at_work: threading.Event) -> None:
        self._shelf, self._tell, self._at_work = shelf, tell, at_work
        self._aside = Aside("worker-namer")
        self._room = threading.Semaphore(_UNNAMED)

    def hold(self, unit: str, state: str) -> Callable[[], None]:
        """Call what it returns once the state was told of: it is named then, beside all else."""
        with ExitStack() as entered:
            self._room.acquire()
            entered.callback(self._room.release)
            view = entered.enter_context(self._shelf.view(state))
            held = entered.pop_all()

        def name() -> None:
            with held:
                self._at_work.wait(_BETWEEN_S)
                found = digest(view)
            self._tell(unit, state, found)

        return lambda: self._aside.do(name)

    def close(self) -> None:
        self._aside.close()

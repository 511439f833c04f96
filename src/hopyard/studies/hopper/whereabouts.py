"""On which shelves each state lies, and which of them are still needed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path

from hopyard.errors import HopyardError
from hopyard.studies.hopper.crew import Crew, Worker
from hopyard.studies.hopper.keeping import Keeping
from hopyard.studies.link.hub import Lent, Wanted
from hopyard.studies.messages import Drop, Lend
from hopyard.studies.states.shelf import Shelf

_LENDS_S = 5.0  # then who was asked to lend a state is asked again: perhaps it could not connect
_DAMAGES = 2  # times that a copy of a state comes with a wrong digest: once it may have been the way


class Whereabouts:
    """shelf: the driver's own, which is that of the workers on its host. address: where the driver serves it.
    saved: state -> file, of the checkpoint that this attempt began with. refuse: tells those who wait for a
    state to lie on the driver's shelf that nobody has it."""

    def __init__(
        self,
        shelf: Shelf,
        address: str,
        saved: Mapping[str, Path],
        crew: Crew,
        say: Callable[[str], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._shelf, self._address, self._crew, self._say, self._refuse = shelf, address, crew, say, refuse
        self._saved = dict(saved)
        self._keeping = Keeping()
        self._unkept: list[str] = []
        self._on: dict[str, set[str]] = {}
        # by state, the connection and shelf of who was asked to lend it to the driver, and when
        self._lenders: dict[str, tuple[int, str, float]] = {}
        self._unlent: set[str] = set()  # of which was said that they could not be had
        self._damages: Counter[tuple[str, str]] = Counter()  # by state and shelf
        for name in shelf.names():
            self.lies(name, shelf.id)

    def lies(self, state: str, shelf: str) -> None:
        self._on.setdefault(state, set()).add(shelf)

    def is_missing(self, state: str, shelf: str) -> None:
        self._on.get(state, set()).discard(shelf)

    def sources(self, state: str, worker: Worker) -> tuple[str, ...]:
        """Where this worker finds it, () where it lies on its own shelf.
        The driver has it brought where it must."""
        shelves = self._on.get(state, set())
        if not state or worker.hello.shelf in shelves:
            return ()
        holders = tuple(one.hello.address for one in self._crew.on_shelves(frozenset(shelves)))
        return (self._address, *holders) if self._shelf.id in shelves else (*holders, self._address)

    def hear(self, event: Wanted | Lent) -> None:
        """What becomes of states that the driver is asked for, because their holder cannot be reached or the
        driver saves them."""
        state = event.state
        if isinstance(event, Wanted):
            self._have_lent(state)
            return
        _, shelf, _ = self._lenders.pop(state, (0, "", 0.0))
        if event.error and not event.missing and state not in self._unlent:  # it is tried again, and again
            self._say(f"state {state} could not be had from its worker: {event.error}")
        self._unlent = self._unlent | {state} if event.error else self._unlent - {state}
        if event.missing:
            self.is_missing(state, shelf)
        elif event.damaged:
            self._doubt(state, shelf)
        elif event.error:
            return
        elif self._keeping.needs(state):
            self.lies(state, self._shelf.id)
        else:  # meanwhile nobody needs it any more
            self._shelf.drop([state])

    def _doubt(self, state: str, shelf: str) -> None:
        """A copy that comes damaged again and again is as good as lost, and nobody is to begin from it."""
        self._damages[state, shelf] += 1
        if self._damages[state, shelf] < _DAMAGES:
            return
        del self._damages[state, shelf]
        self.is_missing(state, shelf)
        there = self._crew.on_shelves(frozenset({shelf}))
        self._say(
            f"state {state} is damaged on {there[0].hello.host if there else 'its host'}: that copy is "
            "given up"
        )
        for worker in there:
            self._crew.send(worker, Drop((state,)))

    def _have_lent(self, state: str) -> None:
        if self._shelf.has(state):
            return
        holders = self._holders(state)
        if not holders:
            self._refuse(state)
            return
        there = {one.connection: one for one in holders if one.connection is not None}
        asked, _, since = self._lenders.get(state, (0, "", 0.0))
        if there and (asked not in there or time.monotonic() - since > _LENDS_S):
            connection, holder = min(there.items(), key=lambda one: one[0] == asked)  # rather another
            self._lenders[state] = connection, holder.hello.shelf, time.monotonic()
            self._crew.send(holder, Lend(state))

    def _holders(self, state: str) -> list[Worker]:
        """The workers that could lend it, but for those that are about to be taken for lost."""
        return [
            one
            for one in self._crew.on_shelves(frozenset(self._on.get(state, set())))
            if not self._crew.why_gone(one)
        ]

    def is_there(self, state: str) -> bool:
        """Whether anybody has it; one that was saved is brought back for that."""
        if not state or self._shelf.id in self._on.get(state, set()) or self._holders(state):
            return True
        file = self._saved.get(state)
        if file is None:
            return False
        try:
            self._shelf.bring(state, file)
        except (OSError, HopyardError) as lost:
            self._say(f"state {state} of the checkpoint cannot be read: {lost}")
            del self._saved[state]
            return False
        self.lies(state, self._shelf.id)
        return True

    def keep(self, keeper: Hashable, states: Iterable[str]) -> None:
        """These, and no others any more; what nobody keeps goes with the next `drop_unkept`."""
        self._unkept += self._keeping.keep(keeper, states)

    def drop_unkept(self) -> None:
        """Everywhere."""
        if self._unkept:
            unkept, self._unkept = self._unkept, []
            self.drop([state for state in unkept if not self._keeping.needs(state)])

    def drop(self, states: Iterable[str]) -> None:
        by_shelf: dict[str, list[str]] = {}
        for state in states:
            for shelf in sorted(self._on.pop(state, set())):
                by_shelf.setdefault(shelf, []).append(state)
        for worker in self._crew:
            if worker.hello.shelf in by_shelf:
                self._crew.send(worker, Drop(tuple(by_shelf[worker.hello.shelf])))
        self._shelf.drop(by_shelf.get(self._shelf.id, []))

    def drop_all_but_kept(self, besides: Iterable[str]) -> None:
        """What earlier drivers left. besides: states that are being made."""
        self.drop(
            [state for state in self._on if not self._keeping.needs(state) and state not in set(besides)]
        )

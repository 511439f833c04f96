"""What a searcher is. `testing.searcher_contract` is the suite that every one passes;
docs/guides/own-searcher.md shows one of one's own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hopyard.domain.ids import TrialId
from hopyard.domain.trial import Proposal, Report, SearchState, Verdict


class Searcher(Protocol):
    """State = constructor arguments + the order of ask and tell calls. Nothing else: no clock, no chance of
    its own beyond a seed, so that it is rebuilt after a crash by making the same calls again. `domain.trial`
    says exactly what may be told and answered."""

    def ask(self) -> Proposal | SearchState:
        """The next trial to train (or to go on with), WAIT until more is told, or DONE.
        Only a Proposal changes anything."""
        ...

    def tell(self, report: Report, /) -> Verdict:
        """What becomes of the trial. At step == budget: CONTINUE means that it has completed, PAUSE that it
        may be asked to go on.

        Raises Conflict where the trial was never proposed.
        """
        ...


@runtime_checkable
class ReleasesTrials(Protocol):
    """Of a searcher that knows early which paused trials it will never come back to."""

    def released(self) -> frozenset[TrialId]:
        """Paused trials that will not be proposed again, nor copied: their state may be dropped. For `tell`
        they stay paused."""
        ...

from __future__ import annotations

from typing import Protocol

from hopyard.domain.trial import Proposal, Report, SearchState, Verdict


class Searcher(Protocol):
    """State = constructor arguments + the order of ask and tell calls. Nothing else: no clock, no chance of its own beyond a seed,
    so that it is rebuilt after a crash by making the same calls again."""

    def ask(self) -> Proposal | SearchState:
        """The next trial to train (or to go on with), WAIT until more is told, or DONE."""
        ...

    def tell(self, report: Report, /) -> Verdict:
        """What becomes of the trial. At step == budget: CONTINUE means that it has completed, PAUSE that it may be asked to go on."""
        ...

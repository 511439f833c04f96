"""The interface of a searcher. `testing.searcher_contract` is its conformance suite;
docs/guides/own-searcher.md shows an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.trial import Proposal, Report, SearchState, Verdict


class Searcher(Protocol):
    """State = constructor arguments + the order of ask and tell calls.

    A searcher uses no clock and no randomness except its seed, so that it can be rebuilt after a crash by the
    same calls. `domain.trial` defines the reports and answers.
    """

    def ask(self) -> Proposal | SearchState:
        """Returns the next trial to train (or to resume), WAIT until another report, or DONE. Only a Proposal
        changes the state."""
        ...

    def tell(self, report: Report, /) -> Verdict:
        """Returns the verdict on the trial. At step == budget, CONTINUE means that it has completed, and
        PAUSE that it may be resumed.

        Raises Conflict if the trial was never proposed.
        """
        ...


@runtime_checkable
class ReleasesTrials(Protocol):
    """Implemented by searchers that know early which paused trials they will never propose again."""

    def released(self) -> frozenset[TrialId]:
        """Returns paused trials that will not be proposed again, nor copied: their states may be deleted. For
        `tell`, they stay paused."""
        ...


@runtime_checkable
class ProposalRestore(Protocol):
    """Implemented by searchers with slow proposals, if the state of the searcher does not depend on their
    computation. A restarted driver then needs no time for the proposals of earlier drivers."""

    def recall(self, proposals: Mapping[TrialId, Mapping[str, ParamValue]]) -> None:
        """Called before the calls are repeated, with the params that each trial was first proposed with.
        `ask` takes them in place of a computation. It raises Conflict for params that it cannot propose."""
        ...

"""Random search (Bergstra and Bengio, JMLR 2012)."""

from __future__ import annotations

from hopyard.domain.trial import Proposal, SearchState, Verdict
from hopyard.searchers.tracked import Tracked, TrackingSearcher


class Random(TrackingSearcher):
    """`trials` trials, each drawn anew and trained to `max_epochs`. trials None: for ever."""

    def _next(self) -> Proposal | SearchState:
        if self._limit is not None and len(self._trials) >= self._limit:
            return SearchState.DONE
        return self._fresh(self._max_epochs)

    def _reached(self, _trial: Tracked) -> Verdict:
        return Verdict.CONTINUE

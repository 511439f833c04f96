"""Random search (Bergstra and Bengio, JMLR 2012)."""

from __future__ import annotations

from hopyard.domain.trial import Proposal, SearchState, Verdict
from hopyard.searchers.base import TrackedTrial, TrackingSearcher


class Random(TrackingSearcher):
    """`trials` trials, each drawn independently and trained to `max_epochs`. trials None: no limit."""

    def _next(self) -> Proposal | SearchState:
        if self._max_trials is not None and len(self._trials) >= self._max_trials:
            return SearchState.DONE
        return self._new_trial(self._max_epochs)

    def _on_budget_reached(self, _trial: TrackedTrial) -> Verdict:
        return Verdict.CONTINUE

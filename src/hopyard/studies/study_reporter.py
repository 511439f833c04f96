"""User-visible output of a running study: lines on stdout, curves, the summary, and mirrors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.study import COUNT_SUMMARIES, StudySpec
from hopyard.domain.trial import Proposal
from hopyard.studies.curves import Curves
from hopyard.studies.study_state import StudyState, TrialPhase

_SUMMARY_INTERVAL_S = 1.0


class TrialListener(Protocol):
    """The part of `studies.mirrors` that is needed here."""

    def trial_started(self, trial: TrialId, params: Mapping[str, ParamValue]) -> None: ...
    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None: ...
    def trial_ended(self, trial: TrialId, *, failed: bool) -> None: ...


class StudyReporter:
    """A `StudyListener` of the driver. summarise: `hop.summary`. progress: called with the number of ended
    trials and the total. on_update: called after each round of events."""

    def __init__(
        self,
        spec: StudySpec,
        curves: Curves,
        listener: TrialListener,
        *,
        summarise: Callable[[Mapping[str, float]], None],
        progress: Callable[[int, int | None], None],
        on_update: Callable[[], object] = lambda: None,
    ) -> None:
        self._spec, self._curves, self._listener = spec, curves, listener
        self._summarise, self._progress, self._on_update = summarise, progress, on_update
        self._last_summary: dict[str, float] = {}
        self._ended_count = -1
        self._summarised_at = 0.0

    def trial_started(self, proposal: Proposal) -> None:
        self._listener.trial_started(proposal.trial, proposal.params)

    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None:
        self._curves.record_report(trial, step, metrics)
        self._listener.trial_reported(trial, step, metrics)

    def trial_ended(self, trial: TrialId, phase: TrialPhase, reason: str) -> None:
        self._listener.trial_ended(trial, failed=phase is TrialPhase.FAILED)
        if phase is TrialPhase.FAILED:
            _print_line(f"trial {trial} failed: {reason}")

    def study_stopped(self, reason: str) -> None:
        _print_line(f"the study ends: {reason}")

    def study_updated(self, state: StudyState) -> None:
        """Reports at most once per second, and at the end."""
        self._on_update()
        now = time.monotonic()
        if now - self._summarised_at >= _SUMMARY_INTERVAL_S:
            self._summarised_at = now
            self.summarise(state)

    def summarise(self, state: StudyState, *, completed: bool = False) -> None:
        """completed: paused trials will never resume."""
        ended = (
            len(state.trials)
            - len(state.training_trials())
            - (0 if completed else state.count(TrialPhase.PAUSED))
        )
        values: dict[str, float] = dict(
            zip(COUNT_SUMMARIES, (len(state.trials), state.count(TrialPhase.FAILED)), strict=True)
        )
        if state.best is not None:
            values[self._spec.metric] = state.best.value
        if values != self._last_summary:
            self._last_summary = values
            self._summarise(values)
        if ended != self._ended_count:
            self._ended_count = ended
            self._progress(ended, self._spec.trials)

    def close(self, state: StudyState, *, completed: bool) -> None:
        """The study has ended, or resumes in another attempt."""
        self.summarise(state, completed=completed)
        best = state.best
        if best is not None:
            params = ", ".join(f"{name}={value}" for name, value in best.params.items())
            _print_line(
                f"best so far: trial {best.trial}, {self._spec.metric} {best.value:g} after "
                f"{self._spec.budget_unit.singular} {best.step}, with {params or 'no parameters'}"
            )


def _print_line(line: str) -> None:
    print(line, flush=True)

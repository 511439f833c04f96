"""The conformance suite of searchers. Every searcher passes it, also a user's own.

Subclass `SearcherContract`, provide `open_searcher`, and inherit every case; there are no exemptions. Needs
pytest and Hypothesis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopyard.domain.ids import TrialId
from hopyard.domain.space import Choice, Condition, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Goal
from hopyard.domain.trial import (
    AskEvent,
    Proposal,
    Report,
    SearchState,
    StudyEvent,
    TellEvent,
    TrialOutcome,
    Verdict,
)
from hopyard.errors import Conflict
from hopyard.interfaces.searcher import Searcher
from hopyard.searchers.replay import replay
from hopyard.testing.study_simulator import StudySimulator, bumpy_curve

EXAMPLE_SPACE = Space(
    (
        Parameter("lr", Uniform(1e-4, 1e-1, log=True)),
        Parameter("optimizer", Choice(("sgd", "adam"))),
        Parameter("momentum", Uniform(0.0, 0.9, step=0.3), (Condition("optimizer", ("sgd",)),)),
        Parameter("layers", Integer(1, 4)),
        Parameter("width", Integer(8, 64, log=True, points=2)),
        Parameter("dropout", Uniform(-0.5, 0.5, points=2)),
        Parameter("seed", Constant(7)),
    )
)
CHOICES = st.lists(st.integers(0, 255), max_size=80)
quick = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


class SearcherContract(ABC):
    """Cases that every searcher must pass.

    space: the space of all proposed params. max_epochs: the largest budget. The study must end: set `trials`
    for a searcher that would never end.
    """

    space: Space = EXAMPLE_SPACE
    max_epochs: int = 9

    @abstractmethod
    def open_searcher(self, *, goal: Goal = Goal.MIN, seed: int = 0) -> Searcher:
        """Returns a new searcher over `space` and `max_epochs`; equal arguments give equal searchers."""

    def open_simulator(self, *, concurrency: int = 4, goal: Goal = Goal.MIN, seed: int = 0) -> StudySimulator:
        return StudySimulator(
            self.open_searcher(goal=goal, seed=seed),
            concurrency=concurrency,
            max_epochs=self.max_epochs,
            space=self.space,
            goal=goal,
        )

    # -- studies end -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("concurrency", [1, 3, 1000])
    def test_study_ends(self, concurrency: int) -> None:
        simulator = self.open_simulator(concurrency=concurrency)
        simulator.finish()
        assert simulator.trials, "no trial was proposed"
        assert any(trial.verdict is Verdict.CONTINUE for trial in simulator.trials.values()), (
            "no trial completed"
        )

    @quick
    @given(choices=CHOICES, concurrency=st.integers(1, 8))
    def test_study_ends_for_any_events(self, choices: list[int], concurrency: int) -> None:
        """Reports in any order, of every step or only some, failures, trials that end by themselves, late and
        repeated reports."""
        simulator = self.open_simulator(concurrency=concurrency)
        simulator.run(choices)
        simulator.finish()

    @pytest.mark.parametrize("outcome", [TrialOutcome.FAILED, TrialOutcome.STOPPED, TrialOutcome.COMPLETED])
    def test_study_ends_if_all_trials_end_at_once(self, outcome: TrialOutcome) -> None:
        simulator = self.open_simulator()
        for _ in range(20_000):
            while (
                not simulator.done
                and len(simulator.training) < simulator.concurrency
                and isinstance(simulator.ask(), Proposal)
            ):
                pass
            if not simulator.training:
                break
            simulator.end(simulator.training[0], outcome)
        assert simulator.done

    @pytest.mark.parametrize("value", [None, nan, inf, -inf])
    def test_report_without_value_at_budget_is_failure(self, value: float | None) -> None:
        simulator = self.open_simulator(concurrency=1)
        proposal = simulator.ask()
        assert isinstance(proposal, Proposal)
        assert simulator.tell(Report(proposal.trial, proposal.budget, value)) is Verdict.STOP
        simulator.trials[proposal.trial].verdict = Verdict.STOP
        simulator.finish()

    # -- state is the order of calls -------------------------------------------------------------------------

    @quick
    @given(choices=CHOICES, cut=st.integers(0, 200))
    def test_replay_after_crash_continues_equally(self, choices: list[int], cut: int) -> None:
        """Holds even if waits were not recorded, and late reports were sent."""
        simulator = self.open_simulator()
        simulator.run(choices)
        events, later = simulator.events[:cut], simulator.events[cut:]
        rebuilt = self.open_searcher()
        replay(
            rebuilt,
            [
                event
                for event in events
                if not isinstance(event, AskEvent) or isinstance(event.answer, Proposal)
            ],
        )
        replay(rebuilt, later)

    @quick
    @given(choices=CHOICES)
    def test_concurrent_studies_are_independent(self, choices: list[int]) -> None:
        first, second = self.open_simulator(), self.open_simulator()
        for choice in choices:
            first.step(choice)
            second.step(choice)
        assert first.events == second.events

    @quick
    @given(choices=CHOICES)
    def test_repeated_asks_and_late_reports_change_nothing(self, choices: list[int]) -> None:
        simulator = self.open_simulator()
        simulator.run(choices)
        searcher = self.open_searcher()
        ended: dict[TrialId, Verdict] = {}
        for event in simulator.events:
            for trial, verdict in list(ended.items())[-3:]:
                assert searcher.tell(Report(trial, 1, -1000.0)) is verdict
                assert searcher.tell(Report(trial, 1000, 1000.0)) is verdict
            replay(searcher, [event])
            if isinstance(event, AskEvent) and not isinstance(event.answer, Proposal):
                assert searcher.ask() is event.answer
            _note_ended(ended, event)

    def test_done_is_permanent(self) -> None:
        simulator = self.open_simulator()
        while simulator.ask() is not SearchState.DONE:
            if simulator.training:
                simulator.train(simulator.training[-1])
        while simulator.training:
            simulator.train(simulator.training[0])
            assert simulator.ask() is SearchState.DONE

    # -- reports ---------------------------------------------------------------------------------------------

    @quick
    @given(choices=CHOICES)
    def test_maximum_mirrors_minimum(self, choices: list[int]) -> None:
        simulator = self.open_simulator(goal=Goal.MIN)
        simulator.run(choices)
        mirrored = self.open_searcher(goal=Goal.MAX)
        replay(mirrored, [_mirror_report(event) for event in simulator.events])

    def test_step_beyond_budget_counts_as_budget(self) -> None:
        first, second = self.open_simulator(concurrency=1), self.open_simulator(concurrency=1)
        for simulator, excess in ((first, 0), (second, 5)):
            for _ in range(10):
                proposal = simulator.ask()
                if not isinstance(proposal, Proposal):
                    break
                value = bumpy_curve(proposal.params, proposal.budget)
                simulator.trials[proposal.trial].copyable_step = proposal.budget
                simulator.trials[proposal.trial].verdict = simulator.tell(
                    Report(proposal.trial, proposal.budget + excess, value)
                )
        verdicts = [
            [event.verdict for event in simulator.events if isinstance(event, TellEvent)]
            for simulator in (first, second)
        ]
        asks = [
            [event for event in simulator.events if isinstance(event, AskEvent)]
            for simulator in (first, second)
        ]
        assert verdicts[0] == verdicts[1]
        assert asks[0] == asks[1]

    def test_report_of_unknown_trial_is_conflict(self) -> None:
        searcher = self.open_searcher()
        for trial in ("0", "7", "-1", "01", "x", ""):
            with pytest.raises(Conflict, match="never proposed"):
                searcher.tell(Report(TrialId(trial), 1, 0.5))


def _note_ended(ended: dict[TrialId, Verdict], event: StudyEvent) -> None:
    match event:
        case AskEvent(Proposal(trial)):
            ended.pop(trial, None)
        case TellEvent(report, Verdict.PAUSE | Verdict.STOP as verdict):
            ended[report.trial] = verdict


def _mirror_report(event: StudyEvent) -> StudyEvent:
    if isinstance(event, TellEvent) and event.report.value is not None:
        return replace(event, report=replace(event.report, value=-event.report.value))
    return event

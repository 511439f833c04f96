"""The conformance suite of searchers. Every searcher passes it, one of a user's own as well.

Subclass `SearcherContract`, give `open_searcher`, and inherit every case; no exemptions. Needs pytest and
Hypothesis.
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
    """space: every proposal has params of it. max_epochs: the largest budget.
    The study must come to an end: give `trials` to a searcher that would go on for ever."""

    space: Space = EXAMPLE_SPACE
    max_epochs: int = 9

    @abstractmethod
    def open_searcher(self, *, goal: Goal = Goal.MIN, seed: int = 0) -> Searcher:
        """A fresh one over `space` and `max_epochs`; of equal arguments an equal one."""

    def open_simulator(self, *, concurrency: int = 4, goal: Goal = Goal.MIN, seed: int = 0) -> StudySimulator:
        return StudySimulator(
            self.open_searcher(goal=goal, seed=seed),
            concurrency=concurrency,
            max_epochs=self.max_epochs,
            space=self.space,
            goal=goal,
        )

    # -- studies come to an end ------------------------------------------------------------------------------

    @pytest.mark.parametrize("room", [1, 3, 1000])
    def test_a_study_ends(self, room: int) -> None:
        play = self.open_simulator(concurrency=room)
        play.finish()
        assert play.trials, "nothing was tried"
        assert any(member.verdict is Verdict.CONTINUE for member in play.trials.values()), (
            "no trial completed"
        )

    @quick
    @given(choices=CHOICES, room=st.integers(1, 8))
    def test_whatever_happens_a_study_ends(self, choices: list[int], room: int) -> None:
        """Reports in any order, every step or only some, failures, trials that end by themselves, late and
        repeated news."""
        play = self.open_simulator(concurrency=room)
        play.run(choices)
        play.finish()

    @pytest.mark.parametrize("outcome", [TrialOutcome.FAILED, TrialOutcome.STOPPED, TrialOutcome.COMPLETED])
    def test_a_study_all_of_whose_trials_end_at_once_ends(self, outcome: TrialOutcome) -> None:
        play = self.open_simulator()
        for _ in range(20_000):
            while (
                not play.done and len(play.training) < play.concurrency and isinstance(play.ask(), Proposal)
            ):
                pass
            if not play.training:
                break
            play.end(play.training[0], outcome)
        assert play.done

    @pytest.mark.parametrize("value", [None, nan, inf, -inf])
    def test_a_budget_without_a_value_is_a_failure(self, value: float | None) -> None:
        play = self.open_simulator(concurrency=1)
        proposal = play.ask()
        assert isinstance(proposal, Proposal)
        assert play.tell(Report(proposal.trial, proposal.budget, value)) is Verdict.STOP
        play.trials[proposal.trial].verdict = Verdict.STOP
        play.finish()

    # -- state is the order of calls -------------------------------------------------------------------------

    @quick
    @given(choices=CHOICES, cut=st.integers(0, 200))
    def test_after_a_crash_at_any_moment_it_goes_on_the_same(self, choices: list[int], cut: int) -> None:
        """Also where waits were not recorded, and late news was told."""
        play = self.open_simulator()
        play.run(choices)
        events, later = play.events[:cut], play.events[cut:]
        heir = self.open_searcher()
        replay(
            heir,
            [
                event
                for event in events
                if not isinstance(event, AskEvent) or isinstance(event.answer, Proposal)
            ],
        )
        replay(heir, later)

    @quick
    @given(choices=CHOICES)
    def test_two_studies_at_once_do_not_touch_each_other(self, choices: list[int]) -> None:
        one, other = self.open_simulator(), self.open_simulator()
        for choice in choices:
            one.step(choice)
            other.step(choice)
        assert one.events == other.events

    @quick
    @given(choices=CHOICES)
    def test_asking_in_vain_and_late_news_change_nothing(self, choices: list[int]) -> None:
        play = self.open_simulator()
        play.run(choices)
        heir = self.open_searcher()
        ended: dict[TrialId, Verdict] = {}
        for event in play.events:
            for trial, verdict in list(ended.items())[-3:]:
                assert heir.tell(Report(trial, 1, -1000.0)) is verdict
                assert heir.tell(Report(trial, 1000, 1000.0)) is verdict
            replay(heir, [event])
            if isinstance(event, AskEvent) and not isinstance(event.answer, Proposal):
                assert heir.ask() is event.answer
            _note_ended(ended, event)

    def test_done_is_for_ever(self) -> None:
        play = self.open_simulator()
        while play.ask() is not SearchState.DONE:
            if play.training:
                play.train(play.training[-1])
        while play.training:
            play.train(play.training[0])
            assert play.ask() is SearchState.DONE

    # -- what a report means ---------------------------------------------------------------------------------

    @quick
    @given(choices=CHOICES)
    def test_the_largest_is_sought_as_the_smallest_is(self, choices: list[int]) -> None:
        play = self.open_simulator(goal=Goal.MIN)
        play.run(choices)
        mirrored = self.open_searcher(goal=Goal.MAX)
        replay(mirrored, [_mirror_report(event) for event in play.events])

    def test_a_step_beyond_the_budget_is_the_budget(self) -> None:
        one, other = self.open_simulator(concurrency=1), self.open_simulator(concurrency=1)
        for play, beyond in ((one, 0), (other, 5)):
            for _ in range(10):
                proposal = play.ask()
                if not isinstance(proposal, Proposal):
                    break
                value = bumpy_curve(proposal.params, proposal.budget)
                play.trials[proposal.trial].copyable_step = proposal.budget
                play.trials[proposal.trial].verdict = play.tell(
                    Report(proposal.trial, proposal.budget + beyond, value)
                )
        told = [
            [event.verdict for event in play.events if isinstance(event, TellEvent)] for play in (one, other)
        ]
        asked = [[event for event in play.events if isinstance(event, AskEvent)] for play in (one, other)]
        assert told[0] == told[1]
        assert asked[0] == asked[1]

    def test_a_trial_that_was_never_proposed_is_a_conflict(self) -> None:
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

"""A searcher is rebuilt by the same calls, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.domain.study import Goal
from hopyard.domain.trial import AskEvent, Proposal, StudyEvent, TellEvent, Verdict
from hopyard.errors import Conflict
from hopyard.searchers.asha import Asha
from hopyard.searchers.replay import replay
from hopyard.testing.searcher_contract import EXAMPLE_SPACE
from hopyard.testing.study_simulator import StudySimulator


def new_searcher(*, seed: int = 0, eta: int = 3) -> Asha:
    return Asha(space=EXAMPLE_SPACE, goal=Goal.MIN, trials=9, max_epochs=9, seed=seed, eta=eta)


def complete_events() -> list[StudyEvent]:
    play = StudySimulator(new_searcher(), max_epochs=9)
    play.finish()
    return play.events


def test_complete_study_is_replayed() -> None:
    events = complete_events()
    assert replay(new_searcher(), events) == len(events)
    assert replay(new_searcher(), []) == 0


def test_other_seed_is_detected_at_once() -> None:
    with pytest.raises(
        Conflict, match=r"event 0, `ask` returned trial 0 up to 1 with lr=.*; now it is trial 0"
    ) as error:
        replay(new_searcher(seed=1), complete_events())
    assert "seed" in error.value.hints[0]


def test_other_option_is_detected_at_first_difference() -> None:
    events = complete_events()
    with pytest.raises(Conflict, match=r"cannot be continued: event \d+, "):
        replay(new_searcher(eta=2), events)


def test_other_verdict_is_detected() -> None:
    events = complete_events()
    at = next(number for number, event in enumerate(events) if isinstance(event, TellEvent))
    told = events[at]
    assert isinstance(told, TellEvent)
    events[at] = replace(told, verdict=Verdict.CONTINUE)
    with pytest.raises(
        Conflict,
        match=rf"event {at}, told .* of trial 0 at step 1 \(running\), was answered continue; now it is",
    ):
        replay(new_searcher(), events)


def test_report_of_another_study_is_detected() -> None:
    events = [
        event
        for event in complete_events()
        if not (isinstance(event, AskEvent) and isinstance(event.answer, Proposal))
    ]
    with pytest.raises(Conflict, match=r"event \d+, .*never proposed"):
        replay(new_searcher(), events)

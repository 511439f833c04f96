"""Population based training: sources of copies, changed values, and waiting members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Condition, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Goal
from hopyard.domain.trial import AskEvent, Proposal, Report, SearchState, TrialOutcome, Verdict
from hopyard.searchers.pbt import PopulationBased, explore, perturb
from hopyard.searchers.sampling import sample
from hopyard.testing.study_simulator import StudySimulator, check_params

from .spaces import spaces

SPACE = Space((Parameter("lr", Uniform(1e-4, 1e-1, log=True)), Parameter("width", Integer(1, 64))))


def population(
    members: int = 8, *, max_epochs: int = 4, rounds: bool = False, quantile: float = 0.25
) -> PopulationBased:
    return PopulationBased(
        space=SPACE,
        goal=Goal.MIN,
        trials=members,
        max_epochs=max_epochs,
        seed=0,
        quantile=quantile,
        rounds=rounds,
        resample=0.0,
    )


def next_proposal(searcher: PopulationBased) -> Proposal:
    answer = searcher.ask()
    assert isinstance(answer, Proposal), answer
    return answer


def report(
    searcher: PopulationBased,
    trial: int,
    step: int,
    value: float | None,
    outcome: TrialOutcome = TrialOutcome.RUNNING,
) -> Verdict:
    return searcher.tell(Report(TrialId(str(trial)), step, value, outcome))


@pytest.mark.parametrize("rounds", [False, True])
def test_worst_quarter_copies_best_quarter(rounds: bool) -> None:
    searcher = population(rounds=rounds)
    begun = [next_proposal(searcher) for _ in range(8)]
    assert [proposal.budget for proposal in begun] == [1] * 8
    assert searcher.ask() is SearchState.WAIT
    for number in range(8):
        assert report(searcher, number, 1, float(number)) is Verdict.PAUSE
    again = {proposal.trial: proposal for proposal in (next_proposal(searcher) for _ in range(8))}
    assert len(again) == 8
    for number in range(6):
        one = again[TrialId(str(number))]
        assert (one.start_from, one.budget, one.params) == (one.trial, 2, begun[number].params)
    for number in (6, 7):
        one = again[TrialId(str(number))]
        assert one.start_from in ("0", "1")
        donor = begun[int(one.start_from)].params
        assert one.params != donor
        for parameter in SPACE.parameters:
            value = donor[parameter.name]
            assert one.params[parameter.name] in [
                perturb(parameter, value, factor=1.2, up=up) for up in (True, False)
            ]


def test_in_rounds_copying_members_train_first() -> None:
    """The copied state is then the same as when it was judged."""
    searcher = population(rounds=True)
    for _ in range(8):
        next_proposal(searcher)
    for number in range(8):
        report(searcher, number, 1, float(number))
    assert [next_proposal(searcher).trial for _ in range(8)] == ["6", "7", "0", "1", "2", "3", "4", "5"]


def test_in_rounds_members_wait_for_last_active_member() -> None:
    searcher = population(3, rounds=True)
    for _ in range(3):
        next_proposal(searcher)
    report(searcher, 0, 1, 1.0)
    report(searcher, 1, 1, 2.0)
    assert searcher.ask() is SearchState.WAIT
    report(searcher, 2, 0, None, TrialOutcome.FAILED)
    assert next_proposal(searcher).budget == 2
    report(searcher, 0, 2, 1.0)
    assert next_proposal(searcher).trial == "1", "of this round, though another is ahead"
    assert searcher.ask() is SearchState.WAIT


def test_without_rounds_least_trained_member_trains_first() -> None:
    searcher = population(3)
    for _ in range(3):
        next_proposal(searcher)
    for step in (1, 2):
        report(searcher, 0, step, 1.0)
        assert next_proposal(searcher).trial == "0"
    report(searcher, 2, 1, 1.0)
    report(searcher, 0, 3, 1.0)
    assert next_proposal(searcher).trial == "2"


def test_failed_member_is_neither_copied_nor_awaited() -> None:
    searcher = population(4, quantile=0.5)
    for _ in range(4):
        next_proposal(searcher)
    for number in range(4):
        report(searcher, number, 1, float(number))
    report(searcher, 0, 1, None, TrialOutcome.FAILED)
    donors = {proposal.start_from for proposal in (next_proposal(searcher) for _ in range(3))}
    assert "0" not in donors


def test_members_are_compared_after_the_same_number_of_epochs() -> None:
    """A more trained member is copied at the epoch of the copying member."""
    searcher = population(4, quantile=0.5)
    begun = [next_proposal(searcher) for _ in range(4)]
    for step in (1, 2):
        for number in (0, 1):
            report(searcher, number, step, 5.0 + number - step)
            if step == 1:
                next_proposal(searcher)
    for number, loss in ((2, 3.5), (3, 9.0)):
        report(searcher, number, 1, loss)
    again = {proposal.trial: proposal for proposal in (next_proposal(searcher) for _ in range(2))}
    assert again[TrialId("2")].start_from == "2", "the best of all after one epoch"
    assert again[TrialId("3")].start_from in ("0", "2")
    donor = begun[int(str(again[TrialId("3")].start_from))].params
    assert all(
        again[TrialId("3")].params[parameter.name]
        in [perturb(parameter, donor[parameter.name], factor=1.2, up=up) for up in (True, False)]
        for parameter in SPACE.parameters
    )


def test_lineage_of_complete_study_is_consistent() -> None:
    """Copies improve: the curve only falls, and falls faster with a larger lr."""
    lived: dict[TrialId, float] = {}

    def curve(params: object, step: int) -> float:
        return -step * float(params["lr"])  # type: ignore[index]

    play = StudySimulator(
        population(8, max_epochs=20), concurrency=3, max_epochs=20, space=SPACE, curve=curve
    )
    play.finish()
    copies = [
        event.answer
        for event in play.events
        if isinstance(event, AskEvent) and isinstance(event.answer, Proposal)
    ]
    lived = {proposal.trial: float(str(proposal.params["lr"])) for proposal in copies}
    begun = {
        proposal.trial: float(str(proposal.params["lr"]))
        for proposal in copies
        if proposal.start_from is None
    }
    assert [proposal for proposal in copies if proposal.start_from not in (None, proposal.trial)]
    assert sum(lived.values()) > sum(begun.values()), "the population moved to where it is better"
    assert {member.step for member in play.trials.values()} == {20}


@given(
    space=spaces(),
    trial=st.integers(0, 99),
    step=st.integers(1, 99),
    resample=st.floats(0, 1),
    factor=st.floats(1, 3),
)
def test_explored_values_are_in_space(
    space: Space, trial: int, step: int, resample: float, factor: float
) -> None:
    check_params(
        space, explore(space, sample(space, 1, trial), 1, trial, step, resample=resample, factor=factor)
    )


def test_satisfied_condition_adds_its_parameter() -> None:
    space = Space(
        (
            Parameter("opt", Choice(("adam", "sgd"))),
            Parameter("momentum", Uniform(0.1, 0.9), (Condition("opt", ("sgd",)),)),
        )
    )
    result = [explore(space, {"opt": "adam"}, 0, trial, 1, resample=0.0, factor=1.2) for trial in range(20)]
    assert {queue["opt"] for queue in result} == {"adam", "sgd"}
    assert all(("momentum" in queue) == (queue["opt"] == "sgd") for queue in result)


@pytest.mark.parametrize(
    ("domain", "value", "up", "expected"),
    [
        (Uniform(1e-3, 1.0), 0.1, True, 0.12),
        (Uniform(1e-3, 1.0), 0.12, False, 0.1),
        (Uniform(1e-3, 1.0), 0.9, True, 1.0),
        (Uniform(-1.0, 1.0), 0.0, True, 0.4),
        (Uniform(-1.0, 1.0), -0.9, False, -1.0),
        (Uniform(0.1, 0.9, step=0.1), 0.3, True, 0.4),
        (Integer(1, 10), 1, True, 2),
        (Integer(1, 10), 1, False, 1),
        (Integer(0, 100, step=10), 50, True, 70),
        (Integer(1, 1000, log=True), 100, False, 83),
        (Choice(("a", "b", "c")), "b", True, "c"),
        (Choice(("a", "b", "c")), "a", False, "a"),
        (Choice((1, True)), True, False, 1),
        (Constant(3), 3, True, 3),
    ],
)
def test_perturbed_value_is_adjacent(
    domain: Uniform | Integer | Choice | Constant, value: ParamValue, up: bool, expected: ParamValue
) -> None:
    result = perturb(Parameter("p", domain), value, factor=1.2, up=up)
    assert result == expected
    assert type(result) is type(expected)

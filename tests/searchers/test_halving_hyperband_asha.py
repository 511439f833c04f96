"""Halving, Hyperband and ASHA against their papers, with manual examples and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.search.search_file import search_from_mapping
from hopyard.domain.ids import TrialId
from hopyard.domain.rungs import rung_budgets
from hopyard.domain.space import Parameter, Space, Uniform
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, Report, SearchState, TrialOutcome, Verdict
from hopyard.errors import SpecError
from hopyard.interfaces.searcher import ReleasesTrials
from hopyard.searchers.asha import Asha
from hopyard.searchers.halving import Halving
from hopyard.searchers.hyperband import Hyperband, bracket_sizes
from hopyard.testing.study_simulator import StudySimulator

SPACE = Space((Parameter("x", Uniform(0.0, 1.0)),))


def best_is_smallest_x(params: object, _step: int) -> float:
    return params["x"]  # type: ignore[index, no-any-return]


def simulate_study(searcher: Asha | Halving | Hyperband, concurrency: int, max_epochs: int) -> StudySimulator:
    play = StudySimulator(searcher, concurrency=concurrency, max_epochs=max_epochs, curve=best_is_smallest_x)
    play.finish()
    return play


def proposed_budgets(play: StudySimulator) -> Counter[int]:
    return Counter(
        event.answer.budget for event in play.events if isinstance(getattr(event, "answer", None), Proposal)
    )


# -- rungs ---------------------------------------------------------------------------------------------------


def test_rung_budgets_of_examples() -> None:
    assert rung_budgets(81, 1, 3) == (1, 3, 9, 27, 81)
    assert rung_budgets(100, 1, 3) == (1, 3, 11, 33, 100)
    assert rung_budgets(100, 2, 3) == (3, 11, 33, 100)
    assert rung_budgets(9, 4, 2) == (4, 9)


@given(st.integers(1, 10_000), st.integers(1, 100), st.integers(2, 10))
def test_rungs_rise_by_eta_from_min_to_max(most: int, least: int, eta: int) -> None:
    if least * eta > most:
        with pytest.raises(SpecError):
            rung_budgets(most, least, eta)
        return
    rungs = rung_budgets(most, least, eta)
    assert least <= rungs[0] < least * eta
    assert rungs[-1] == most
    assert all(eta <= above / below < eta * 2 for below, above in pairwise(rungs))


def test_impossible_rungs_are_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"searcher\.options\.min_epochs: 5 epochs at the lowest rung exceed max_epochs \(3\)",
    ):
        rung_budgets(3, 5, 3)
    with pytest.raises(SpecError, match="no rung to compare") as error:
        rung_budgets(2, 1, 3)
    assert "at least 3" in error.value.hints[0]


@pytest.mark.parametrize(
    ("searcher", "expected"),
    [
        ("asha", "search: epochs: with 2 and a lowest rung of 1"),
        ({"name": "hyperband", "min_epochs": 3}, "searcher.min_epochs: 3 epochs"),
    ],
)
def test_study_file_without_rungs_is_refused_on_read(searcher: object, expected: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    study = {
        "metric": "acc",
        "script": "x.py",
        "trials": 9,
        "epochs": 2,
        "space": {"lr": [1, 2]},
        "searcher": searcher,
    }
    with pytest.raises(SpecError, match=expected):
        search_from_mapping(study, tmp_path)


# -- Hyperband -----------------------------------------------------------------------------------------------

# n_i and r_i of each bracket for R = 81, eta = 3, by lines 1 to 7 of the paper's Algorithm 1.
TABLE = {
    4: [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
    3: [(34, 3), (11, 9), (3, 27), (1, 81)],
    2: [(15, 9), (5, 27), (1, 81)],
    1: [(8, 27), (2, 81)],
    0: [(5, 81)],
}


@pytest.mark.parametrize("concurrency", [1, 7, 500])
def test_hyperband_has_brackets_of_paper(concurrency: int) -> None:
    """Trials are counted when trained, in order: 81 of bracket 4, 34 of bracket 3 …, for any concurrency."""
    play = simulate_study(
        Hyperband(space=SPACE, goal=Goal.MIN, trials=None, max_epochs=81, seed=0), concurrency, 81
    )
    first = 0
    for rungs in TABLE.values():
        members = [play.trials[TrialId(str(number))] for number in range(first, first + rungs[0][0])]
        first += len(members)
        assert [(sum(member.step >= budget for member in members), budget) for _, budget in rungs] == rungs
    assert first == len(play.trials)


@pytest.mark.parametrize(("max_epochs", "eta"), [(81, 3), (27, 3), (16, 2), (64, 4), (100, 3), (50, 2)])
def test_hyperband_stays_within_budget_of_paper(max_epochs: int, eta: int) -> None:
    """Each bracket takes about (s_max + 1) R epochs. Rounding n up may cost R more.
    Trials resume instead of restarting at each rung, so the total stays within the bound."""
    rungs = rung_budgets(max_epochs, 1, eta)
    plan = bracket_sizes(rungs, eta)
    play = simulate_study(
        Hyperband(space=SPACE, goal=Goal.MIN, trials=None, max_epochs=max_epochs, seed=0, eta=eta),
        16,
        max_epochs,
    )
    bound = len(rungs) * max_epochs
    for trials, budgets in plan:
        paper = sum(trials // eta**at * budget for at, budget in enumerate(budgets))
        assert paper <= bound + max_epochs
    assert play.epochs <= len(plan) * bound


def test_brackets_repeat_until_all_trials_are_started() -> None:
    play = simulate_study(Hyperband(space=SPACE, goal=Goal.MIN, trials=30, max_epochs=9, seed=0), 4, 9)
    # 9 at 1, 5 at 3, 3 at 9, and again; 30 - 17 = 13 is 9 and 4
    assert len(play.trials) == 30
    first = [
        event.answer
        for event in play.events
        if isinstance(getattr(event, "answer", None), Proposal) and event.answer.start_from is None
    ]  # type: ignore[union-attr]
    assert [proposal.budget for proposal in first] == [1] * 9 + [3] * 5 + [9] * 3 + [1] * 9 + [3] * 4  # type: ignore[union-attr]


def test_waiting_bracket_yields_workers_to_next_bracket() -> None:
    searcher = Hyperband(space=SPACE, goal=Goal.MIN, trials=None, max_epochs=9, seed=0)
    answers = [searcher.ask() for _ in range(17)]
    assert all(isinstance(proposal, Proposal) for proposal in answers)
    assert searcher.ask() is SearchState.WAIT


# -- successive halving --------------------------------------------------------------------------------------


def report(
    searcher: Halving | Asha,
    trial: int,
    step: int,
    value: float | None,
    outcome: TrialOutcome = TrialOutcome.RUNNING,
) -> Verdict:
    return searcher.tell(Report(TrialId(str(trial)), step, value, outcome))


def next_proposal(searcher: Halving | Asha) -> tuple[int, int]:
    answer = searcher.ask()
    assert isinstance(answer, Proposal), answer
    return int(answer.trial), answer.budget


def test_halving_matches_manual_example() -> None:
    searcher = Halving(space=SPACE, goal=Goal.MAX, trials=9, max_epochs=9, seed=0)
    assert [next_proposal(searcher) for _ in range(9)] == [(number, 1) for number in range(9)]
    verdicts = [
        report(searcher, number, 1, value)
        for number, value in enumerate([0.1, 0.2, 0.3, 0.3, 0.05, 0.9, 0.2, 0.1])
    ]
    # 0.05 of trial 4 has three better trials already; 0.3 of trials 2 and 3 tie, and the smaller number is
    # first
    assert verdicts == [*[Verdict.PAUSE] * 4, Verdict.STOP, Verdict.PAUSE, Verdict.STOP, Verdict.STOP]
    assert searcher.ask() is SearchState.WAIT, "trial 8 may still be the best"
    assert searcher.released() == {"0", "1"}
    assert report(searcher, 8, 1, 0.3) is Verdict.STOP
    assert [next_proposal(searcher) for _ in range(3)] == [(5, 3), (2, 3), (3, 3)]
    assert searcher.ask() is SearchState.WAIT
    assert [report(searcher, number, 3, 0.5) for number in (3, 5, 2)] == [
        Verdict.PAUSE,
        Verdict.STOP,
        Verdict.PAUSE,
    ]
    assert next_proposal(searcher) == (2, 9)
    assert searcher.ask() is SearchState.DONE
    assert report(searcher, 2, 9, 0.6) is Verdict.CONTINUE


def test_failed_trials_do_not_block_rungs() -> None:
    searcher = Halving(space=SPACE, goal=Goal.MIN, trials=9, max_epochs=9, seed=0)
    for _ in range(9):
        searcher.ask()
    for number in range(6):
        assert report(searcher, number, 0, None, TrialOutcome.FAILED) is Verdict.STOP
    for number in (6, 7):
        assert report(searcher, number, 1, float(number)) is Verdict.PAUSE
    assert report(searcher, 8, 1, None) is Verdict.STOP, "no value at the budget"
    assert [next_proposal(searcher), next_proposal(searcher)] == [(6, 3), (7, 3)]
    report(searcher, 6, 3, 1.0)
    report(searcher, 7, 2, None, TrialOutcome.FAILED)
    assert next_proposal(searcher) == (6, 9)


def test_paused_trial_that_is_lost_is_not_promoted() -> None:
    searcher = Halving(space=SPACE, goal=Goal.MIN, trials=3, max_epochs=3, seed=0)
    for _ in range(3):
        searcher.ask()
    for number in range(3):
        report(searcher, number, 1, float(number))
    assert report(searcher, 0, 1, None, TrialOutcome.FAILED) is Verdict.STOP
    assert searcher.ask() is SearchState.DONE


def test_completed_trial_counts_in_rung_but_is_not_promoted() -> None:
    searcher = Halving(space=SPACE, goal=Goal.MIN, trials=6, max_epochs=9, seed=0)
    for _ in range(6):
        searcher.ask()
    assert report(searcher, 0, 1, 0.0, TrialOutcome.COMPLETED) is Verdict.STOP
    for number in range(1, 6):
        report(searcher, number, 1, float(number))
    assert next_proposal(searcher) == (1, 3)
    assert searcher.ask() is SearchState.WAIT


@pytest.mark.parametrize(
    ("trials", "expected"),
    [(None, {1: 27, 3: 9, 9: 3, 27: 1}), (10, {1: 10, 3: 3, 9: 1, 27: 1}), (2, {1: 2, 3: 1, 9: 1, 27: 1})],
)
def test_one_trial_always_reaches_max_budget(trials: int | None, expected: dict[int, int]) -> None:
    play = simulate_study(Halving(space=SPACE, goal=Goal.MIN, trials=trials, max_epochs=27, seed=0), 4, 27)
    assert proposed_budgets(play) == expected
    best = min(play.trials.values(), key=lambda member: float(str(member.params["x"])))
    assert best.verdict is Verdict.CONTINUE


# -- ASHA ----------------------------------------------------------------------------------------------------


def test_asha_promotes_as_in_algorithm_2() -> None:
    searcher = Asha(space=SPACE, goal=Goal.MIN, trials=None, max_epochs=9, seed=0)
    assert [next_proposal(searcher) for _ in range(3)] == [(0, 1), (1, 1), (2, 1)]
    assert report(searcher, 0, 1, 0.5) is Verdict.PAUSE
    assert next_proposal(searcher) == (3, 1), "one of a rung of one: 1 // 3 = 0 may go on"
    report(searcher, 1, 1, 0.4)
    assert next_proposal(searcher) == (4, 1)
    report(searcher, 2, 1, 0.6)
    assert next_proposal(searcher) == (1, 3), "the best of three"
    assert next_proposal(searcher) == (5, 1), "it went on already"
    for number, value in ((3, 0.1), (4, 0.2)):
        report(searcher, number, 1, value)
    assert next_proposal(searcher) == (3, 3), "the best of five; 1 went on before it was beaten, and stays"
    report(searcher, 5, 1, 0.7)
    assert next_proposal(searcher) == (4, 3), "the second best of six"
    report(searcher, 1, 3, 0.3)
    report(searcher, 3, 3, 0.35)
    report(searcher, 4, 3, 0.01)
    assert next_proposal(searcher) == (4, 9), "higher rungs first"
    assert report(searcher, 4, 9, 0.0) is Verdict.CONTINUE
    assert next_proposal(searcher) == (6, 1)


@given(
    done=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=60),
    eta=st.integers(2, 4),
)
def test_asha_matches_pseudocode(done: list[tuple[int, int]], eta: int) -> None:
    """Four workers, which finish in any order; the paper's get_job over plain lists."""
    searcher = Asha(space=SPACE, goal=Goal.MIN, trials=None, max_epochs=eta**3, seed=0, eta=eta)
    rungs: list[dict[int, int]] = [{}, {}, {}, {}]
    promoted: list[set[int]] = [set(), set(), set(), set()]
    running: list[tuple[int, int]] = []
    fresh = 0
    for which, value in done:
        while len(running) < 4:
            gets = (fresh, 0)
            for k in (2, 1, 0):
                ranking = sorted((loss, trial) for trial, loss in rungs[k].items())
                promotable = [
                    trial for _, trial in ranking[: len(rungs[k]) // eta] if trial not in promoted[k]
                ]
                if promotable:
                    gets = (promotable[0], k + 1)
                    promoted[k].add(promotable[0])
                    break
            fresh += gets[1] == 0
            assert next_proposal(searcher) == (gets[0], eta ** gets[1])
            running.append(gets)
        trial, rung = running.pop(which)
        rungs[rung][trial] = value
        report(searcher, trial, eta**rung, float(value))


def test_asha_promotes_higher_rungs_first() -> None:
    searcher = Asha(space=SPACE, goal=Goal.MIN, trials=None, max_epochs=4, seed=0, eta=2)
    for number in range(4):
        assert next_proposal(searcher) == (number, 1)
    for number in range(4):
        report(searcher, number, 1, float(number))
    assert [next_proposal(searcher), next_proposal(searcher)] == [(0, 2), (1, 2)]
    assert [next_proposal(searcher), next_proposal(searcher)] == [(4, 1), (5, 1)]
    for number in (4, 5):
        report(searcher, number, 1, -1.0)
    report(searcher, 0, 2, 0.0)
    report(searcher, 1, 2, 1.0)
    assert [next_proposal(searcher) for _ in range(3)] == [(0, 4), (4, 2), (5, 2)]


def test_asha_does_not_release_promoted_trial() -> None:
    """The trial was promoted early and overtaken in its old rung, but is still a candidate in its new
    rung."""
    searcher = Asha(space=SPACE, goal=Goal.MIN, trials=4, max_epochs=4, seed=0, eta=2)
    for number in range(2):
        next_proposal(searcher)
        report(searcher, number, 1, 10.0 + number)
    assert next_proposal(searcher) == (0, 2)
    report(searcher, 0, 2, 5.0)
    for number in (2, 3):
        assert next_proposal(searcher) == (number, 1)
    for number in (2, 3):
        report(searcher, number, 1, 1.0)
    assert searcher.released() == {"1"}


def test_asha_stops_trial_that_cannot_be_promoted() -> None:
    searcher = Asha(space=SPACE, goal=Goal.MIN, trials=6, max_epochs=9, seed=0)
    for _ in range(4):
        next_proposal(searcher)
    assert [report(searcher, number, 1, float(number)) for number in range(3)] == [
        Verdict.PAUSE,
        Verdict.PAUSE,
        Verdict.STOP,
    ]
    assert isinstance(searcher, ReleasesTrials)
    assert searcher.released() == set()
    assert report(searcher, 3, 1, -1.0) is Verdict.PAUSE
    assert searcher.released() == {"1"}, "of six, the best two may ever go on"


def test_asha_with_few_trials_trains_one_to_max_budget() -> None:
    play = simulate_study(Asha(space=SPACE, goal=Goal.MIN, trials=5, max_epochs=81, seed=0), 4, 81)
    assert [member.step for member in play.trials.values() if member.verdict is Verdict.CONTINUE] == [81]


@pytest.mark.parametrize("workers", [4, 25])
def test_asha_keeps_all_workers_busy(workers: int) -> None:
    """Trials of very different speeds, as simulated in the paper. No worker idles while new trials are
    available. Each rung trains one in eta of the rung below, and of the order of its square root more that
    were promoted too early."""
    searcher = Asha(space=SPACE, goal=Goal.MIN, trials=270, max_epochs=27, seed=3)
    slow = simulate_workers(searcher, workers, lambda params: 1.0 + 20.0 * float(str(params["x"])))
    assert slow.idle_while_fresh == 0.0
    counts = [slow.reached[budget] for budget in (1, 3, 9, 27)]
    assert counts[0] == 270
    for below, above in pairwise(counts):
        assert below // 3 <= above <= below / 3 + 2 * below**0.5, counts


class SimulationResult:
    def __init__(self) -> None:
        self.idle_while_fresh = 0.0
        self.reached: Counter[int] = Counter()


def simulate_workers(
    searcher: Asha, workers: int, epoch_s: Callable[[dict[str, object]], float]
) -> SimulationResult:
    """Simulates workers that take proposals and report at their budget after the duration of its epochs."""
    found, now, done_at = SimulationResult(), 0.0, dict[str, tuple[float, Proposal]]()
    step: dict[str, int] = {}
    while True:
        answer: Proposal | SearchState = SearchState.WAIT
        while len(done_at) < workers and isinstance(answer := searcher.ask(), Proposal):
            epochs = answer.budget - step.get(answer.trial, 0)
            step[answer.trial] = answer.budget
            done_at[answer.trial] = (now + epochs * epoch_s(dict(answer.params)), answer)
        if not done_at:
            assert answer is SearchState.DONE
            return found
        trial, (then, proposal) = min(done_at.items(), key=lambda item: (item[1][0], item[0]))
        if len(step) < 270:
            found.idle_while_fresh += (workers - len(done_at)) * (then - now)
        now = then
        del done_at[trial]
        found.reached[proposal.budget] += 1
        searcher.tell(Report(TrialId(trial), proposal.budget, float(str(proposal.params["x"]))))

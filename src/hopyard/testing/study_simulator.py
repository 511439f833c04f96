"""A study without training: drives a searcher like a real study, and checks every answer with the rules of
`domain.trial`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Integer, Space, Uniform
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
from hopyard.interfaces.searcher import ReleasesTrials, Searcher

# the metric of these params after this number of epochs
Curve = Callable[[Mapping[str, ParamValue], int], float]


def bumpy_curve(params: Mapping[str, ParamValue], step: int) -> float:
    """Returns a metric that is unrelated to the params, except that equal params have equal curves. It has
    few values, so that ties occur."""
    text = repr(sorted(params.items()))
    return blake2b(f"{text}:{step // 3}".encode(), digest_size=1).digest()[0] % 16 / 16 - step / 100


@dataclass(slots=True)
class SimulatedTrial:
    """A trial from the view of the study. copyable_step: the step of the newest budget that it reached; None:
    no state to copy or resume from."""

    budget: int
    params: Mapping[str, ParamValue]
    step: int = 0
    verdict: Verdict | None = None  # None while it trains
    copyable_step: int | None = None


class StudySimulator:
    """Simulates a study.

    concurrency: how many trials train at a time. `events` has all calls and answers in order; `epochs` is the
    total number of trained epochs.
    """

    def __init__(
        self,
        searcher: Searcher,
        *,
        concurrency: int = 4,
        max_epochs: int,
        space: Space | None = None,
        curve: Curve = bumpy_curve,
        goal: Goal = Goal.MIN,
    ) -> None:
        self.searcher, self.concurrency, self.max_epochs, self.space, self.curve, self.goal = (
            searcher,
            concurrency,
            max_epochs,
            space,
            curve,
            goal,
        )
        self.trials: dict[TrialId, SimulatedTrial] = {}
        self.events: list[StudyEvent] = []
        self.done = False
        self.epochs = 0

    @property
    def training(self) -> list[TrialId]:
        return [trial for trial, simulated in self.trials.items() if simulated.verdict is None]

    def ask(self) -> Proposal | SearchState:
        released = self.searcher.released() if isinstance(self.searcher, ReleasesTrials) else frozenset()
        answer = self.searcher.ask()
        self.events.append(AskEvent(answer))
        if isinstance(answer, Proposal):
            assert not self.done, "DONE is permanent"
            assert answer.trial not in released and answer.start_from not in released, (
                "a released trial was proposed or copied"
            )
            self._begin(answer)
        elif answer is SearchState.WAIT:
            assert self.training, "WAIT although no trial is training: no report would ever follow"
            assert not self.done, "DONE is permanent"
        else:
            self.done = True
        return answer

    def _begin(self, proposal: Proposal) -> None:
        assert 1 <= proposal.budget <= self.max_epochs, f"a budget of {proposal.budget}"
        simulated = self.trials.get(proposal.trial)
        start = None if proposal.start_from is None else self.trials.get(proposal.start_from)
        if proposal.start_from is not None:
            assert start is not None and start.copyable_step is not None, (
                f"{proposal.start_from} has no state to begin from"
            )
            assert start.verdict is not Verdict.STOP, "the state of a stopped trial is not kept"
        if simulated is None:
            assert proposal.trial == str(len(self.trials)), (
                "trials are numbered in the order of first proposals"
            )
            simulated = self.trials[proposal.trial] = SimulatedTrial(proposal.budget, proposal.params)
        else:
            assert simulated.verdict is Verdict.PAUSE, (
                f"{proposal.trial} is proposed again although it is not paused"
            )
            assert proposal.budget > simulated.budget, "a resumed trial needs a larger budget"
            assert start is not None, "a resumed trial needs a state to start from"
            simulated.budget, simulated.params, simulated.verdict = proposal.budget, proposal.params, None
        if self.space is not None:
            check_params(self.space, proposal.params)

    def tell(self, report: Report) -> Verdict:
        verdict = self.searcher.tell(report)
        self.events.append(TellEvent(report, verdict))
        return verdict

    def train(self, trial: TrialId, *, until_step: int | None = None) -> Verdict:
        """Trains more epochs (None: up to the budget), then reports once."""
        simulated = self.trials[trial]
        step = simulated.budget if until_step is None else min(until_step, simulated.budget)
        self.epochs += step - simulated.step
        simulated.step = step
        verdict = self.tell(Report(trial, step, self.curve(simulated.params, step)))
        assert verdict is not Verdict.PAUSE or step == simulated.budget, "PAUSE before the budget"
        if step == simulated.budget:
            simulated.copyable_step = step
        if step == simulated.budget or verdict is not Verdict.CONTINUE:
            simulated.verdict = verdict
        return verdict

    def end(self, trial: TrialId, outcome: TrialOutcome) -> None:
        """Ends a trial by itself, or by something else than the searcher, while it trains or pauses."""
        simulated = self.trials[trial]
        value = (
            self.curve(simulated.params, simulated.step)
            if outcome is TrialOutcome.COMPLETED and simulated.step
            else None
        )
        assert self.tell(Report(trial, simulated.step, value, outcome)) is Verdict.STOP, (
            "the verdict on a final outcome must be STOP"
        )
        simulated.verdict, simulated.copyable_step = Verdict.STOP, None

    def repeat(self, trial: TrialId) -> None:
        """Sends a late report: of a trial that does not train, or of an earlier step."""
        simulated = self.trials[trial]
        if simulated.verdict is None and not simulated.step:
            return
        verdict = self.tell(Report(trial, max(1, simulated.step), self.curve(simulated.params, 7)))
        if simulated.verdict is not None:
            assert verdict is simulated.verdict, (
                "a late report of a trial that does not train gets the last verdict"
            )
        else:
            assert verdict is Verdict.CONTINUE, "the report of an earlier step must change nothing"

    def step(self, choice: int) -> None:
        """Simulates one event of a random study, selected by `choice` (0 to 255)."""
        training, kind = self.training, choice % 16
        if kind < 6 and len(training) < self.concurrency:
            self.ask()
        elif kind < 12 and training:
            trial = training[choice // 16 % len(training)]
            self.train(trial, until_step=self.trials[trial].step + 1)
        elif kind == 12 and training:
            self.train(training[choice // 16 % len(training)])
        elif kind == 13 and training:
            outcomes = (TrialOutcome.FAILED, TrialOutcome.COMPLETED, TrialOutcome.STOPPED)
            self.end(training[choice // 16 % len(training)], outcomes[choice // 64 % 3])
        elif kind == 14 and self.trials:
            self.repeat(list(self.trials)[choice // 16 % len(self.trials)])
        elif kind == 15:
            paused = [trial for trial, simulated in self.trials.items() if simulated.verdict is Verdict.PAUSE]
            if paused:
                self.end(paused[choice // 16 % len(paused)], TrialOutcome.FAILED)

    def run(self, choices: Sequence[int]) -> None:
        for choice in choices:
            self.step(choice)

    def finish(self, *, max_steps: int = 20_000) -> None:
        """Simulates to the end: the first trial in line trains up to its budget."""
        for _ in range(max_steps):
            while (
                not self.done and len(self.training) < self.concurrency and isinstance(self.ask(), Proposal)
            ):
                pass
            if not self.training:
                if self.done:
                    return
                continue
            self.train(self.training[0])
        raise AssertionError(f"the study did not end within {max_steps} trainings")


def check_params(space: Space, params: Mapping[str, ParamValue]) -> None:
    """Asserts that `params` has exactly the active parameters, each with a value of its domain."""
    active: dict[str, ParamValue] = {}
    for parameter in space.parameters:
        if not space.is_active(parameter, active):
            assert parameter.name not in params, f"{parameter.name} does not exist here"
            continue
        assert parameter.name in params, f"{parameter.name} is missing"
        value = active[parameter.name] = params[parameter.name]
        match parameter.domain:
            case Constant(only):
                assert value == only
            case Choice(values):
                assert any(value == choice and type(value) is type(choice) for choice in values)
            case Integer(low, high, step=step):
                assert type(value) is int and low <= value <= high and (value - low) % step == 0, (
                    f"{parameter.name}: {value}"
                )
            case Uniform(low, high, step=step):
                assert isinstance(value, float | int) and low <= value <= high, f"{parameter.name}: {value}"
                if step is not None:
                    assert abs((value - low) / step - round((value - low) / step)) < 1e-6, (
                        f"{parameter.name}: {value}"
                    )
    assert set(params) == set(active), "a parameter that the space does not have"

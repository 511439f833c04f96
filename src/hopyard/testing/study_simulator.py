"""A study without training: drives a searcher as a real study would, and holds every answer against the rules
of `domain.trial`."""

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

Curve = Callable[[Mapping[str, ParamValue], int], float]  # the metric of these params after so many epochs


def bumpy_curve(params: Mapping[str, ParamValue], step: int) -> float:
    """A metric that has nothing to do with the params, except that equal ones have equal curves.
    Few values, so that ties occur."""
    text = repr(sorted(params.items()))
    return blake2b(f"{text}:{step // 3}".encode(), digest_size=1).digest()[0] % 16 / 16 - step / 100


@dataclass(slots=True)
class SimulatedTrial:
    """A trial as the study sees it. copyable_step: the step of its newest budget that it reached; None: no
    state to copy or go on from."""

    budget: int
    params: Mapping[str, ParamValue]
    step: int = 0
    verdict: Verdict | None = None  # None while it trains
    copyable_step: int | None = None


class StudySimulator:
    """concurrency: how many trials train at a time. Everything said is in `events`, in order; `epochs` is
    what was trained in all."""

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
        return [trial for trial, member in self.trials.items() if member.verdict is None]

    def ask(self) -> Proposal | SearchState:
        released = self.searcher.released() if isinstance(self.searcher, ReleasesTrials) else frozenset()
        answer = self.searcher.ask()
        self.events.append(AskEvent(answer))
        if isinstance(answer, Proposal):
            assert not self.done, "DONE is for ever"
            assert answer.trial not in released and answer.start_from not in released, (
                "released, and proposed or copied"
            )
            self._begin(answer)
        elif answer is SearchState.WAIT:
            assert self.training, "waits although no trial is training: nothing more would ever be told"
            assert not self.done, "DONE is for ever"
        else:
            self.done = True
        return answer

    def _begin(self, proposal: Proposal) -> None:
        assert 1 <= proposal.budget <= self.max_epochs, f"a budget of {proposal.budget}"
        member = self.trials.get(proposal.trial)
        start = None if proposal.start_from is None else self.trials.get(proposal.start_from)
        if proposal.start_from is not None:
            assert start is not None and start.copyable_step is not None, (
                f"{proposal.start_from} has no state to begin from"
            )
            assert start.verdict is not Verdict.STOP, "a stopped trial's state is not kept"
        if member is None:
            assert proposal.trial == str(len(self.trials)), (
                "trials are numbered in the order of first proposals"
            )
            member = self.trials[proposal.trial] = SimulatedTrial(proposal.budget, proposal.params)
        else:
            assert member.verdict is Verdict.PAUSE, (
                f"{proposal.trial} is proposed again though it is not paused"
            )
            assert proposal.budget > member.budget, "a trial that goes on has a larger budget"
            assert start is not None, "a trial that goes on says from what state"
            member.budget, member.params, member.verdict = proposal.budget, proposal.params, None
        if self.space is not None:
            check_params(self.space, proposal.params)

    def tell(self, report: Report) -> Verdict:
        verdict = self.searcher.tell(report)
        self.events.append(TellEvent(report, verdict))
        return verdict

    def train(self, trial: TrialId, *, until_step: int | None = None) -> Verdict:
        """Some epochs more (None: up to the budget), then one report."""
        member = self.trials[trial]
        step = member.budget if until_step is None else min(until_step, member.budget)
        self.epochs += step - member.step
        member.step = step
        verdict = self.tell(Report(trial, step, self.curve(member.params, step)))
        assert verdict is not Verdict.PAUSE or step == member.budget, "paused before its budget"
        if step == member.budget:
            member.copyable_step = step
        if step == member.budget or verdict is not Verdict.CONTINUE:
            member.verdict = verdict
        return verdict

    def end(self, trial: TrialId, outcome: TrialOutcome) -> None:
        """By itself, or by somebody else than the searcher: while it trains, or pauses."""
        member = self.trials[trial]
        value = (
            self.curve(member.params, member.step)
            if outcome is TrialOutcome.COMPLETED and member.step
            else None
        )
        assert self.tell(Report(trial, member.step, value, outcome)) is Verdict.STOP, (
            "a final outcome is answered with STOP"
        )
        member.verdict, member.copyable_step = Verdict.STOP, None

    def repeat(self, trial: TrialId) -> None:
        """Late news: of a trial that does not train, or of a step that was told before."""
        member = self.trials[trial]
        if member.verdict is None and not member.step:
            return
        verdict = self.tell(Report(trial, max(1, member.step), self.curve(member.params, 7)))
        if member.verdict is not None:
            assert verdict is member.verdict, "late news of a trial that does not train is answered as before"
        else:
            assert verdict is Verdict.CONTINUE, "a step that was told before says nothing new"

    def step(self, choice: int) -> None:
        """One event of a random study: `choice` (0 to 255) says which."""
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
            paused = [trial for trial, member in self.trials.items() if member.verdict is Verdict.PAUSE]
            if paused:
                self.end(paused[choice // 16 % len(paused)], TrialOutcome.FAILED)

    def run(self, choices: Sequence[int]) -> None:
        for choice in choices:
            self.step(choice)

    def finish(self, *, max_steps: int = 20_000) -> None:
        """To the end: whoever is first in line trains up to its budget."""
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
    """Exactly the parameters that exist together, each with a value of its domain."""
    chosen: dict[str, ParamValue] = {}
    for parameter in space.parameters:
        if not space.is_active(parameter, chosen):
            assert parameter.name not in params, f"{parameter.name} does not exist here"
            continue
        assert parameter.name in params, f"{parameter.name} is missing"
        value = chosen[parameter.name] = params[parameter.name]
        match parameter.domain:
            case Constant(only):
                assert value == only
            case Choice(values):
                assert any(value == one and type(value) is type(one) for one in values)
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
    assert set(params) == set(chosen), "a parameter that the space does not have"

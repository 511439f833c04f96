"""The trials that are in the trainer's hands: begun, reported, ended, and gone back with where a state was
lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hopyard.domain.ids import TrialId
from hopyard.domain.study import Goal
from hopyard.errors import StudyFailed
from hopyard.mop.events import EvaluationWanted, Event, TrialAdmitted, TrialWithdrawn
from hopyard.studies.hopper.adopting import Adopting
from hopyard.studies.hopper.crew import Crew
from hopyard.studies.hopper.ledger import Ledger
from hopyard.studies.hopper.restoring import origin_of, resumed
from hopyard.studies.hopper.training import Training
from hopyard.studies.hopper.whereabouts import Whereabouts
from hopyard.studies.trainer import Ground, News, Reported, TrialFailed, Work


class Trials:
    """facts: what the coordinator is to be told next. news: what the driver is to be told next."""

    def __init__(
        self, ground: Ground, ledger: Ledger, states: Whereabouts, adopting: Adopting, crew: Crew, parts: int
    ) -> None:
        self._ground, self._ledger, self._states, self._adopting, self._crew, self._parts = (
            ground,
            ledger,
            states,
            adopting,
            crew,
            parts,
        )
        self._all: dict[TrialId, Training] = {}
        self.facts: list[Event] = []
        self.news: list[News] = []
        for trial, left in ledger.book.left.items():
            states.keep(trial, {left.state})
        states.keep("beginning", {ledger.book.first.state})
        if ledger.book.best is not None:
            states.keep("best", {ledger.book.best.state})

    def __iter__(self) -> Iterator[Training]:
        return iter(self._all.values())

    def find(self, trial: TrialId) -> Training | None:
        return self._all.get(trial)

    @property
    def by_id(self) -> Mapping[TrialId, Training]:
        return self._all

    def begin(self, work: Work) -> None:
        """Take it up where it was, where the driver began again; else from the state that it is to begin
        with. Raises StudyFailed where that is another study's and cannot be read."""
        book = self._ledger.book
        work = replace(work, done=max(work.done, book.first.epoch))
        before = book.begun.get(work.trial)
        if (
            work.resumed
            and before is not None
            and before.budget == work.budget
            and dict(before.params) == dict(work.params)
        ):
            training = resumed(book, work, self._states.is_there)
            self._check_first(training.state)
            if training.state != book.heads.get(work.trial):
                self._ledger.write(
                    "again", trial=work.trial, state=training.state, order=list(training.order)
                )
        else:
            state, at = origin_of(book, self._all, work, self._states.is_there)
            self._check_first(state)
            if work.trial in self._all:
                self._withdraw(work.trial)
            self._ledger.write(
                "begun",
                trial=work.trial,
                state=state,
                epoch=at.epoch,
                budget=work.budget,
                params=dict(work.params),
            )
            training = Training(work.trial, work.params, work.budget, work.done, state, at)
            if state and not at.visited and at.epoch == work.done:
                training.ends[at.epoch] = state
        self._all[work.trial] = training
        self._keep(training)
        self.admit(training)

    def _check_first(self, state: str) -> None:
        if state and state == self._ledger.book.first.state and not self._states.is_there(state):
            hint = "fork the study again: `hop fork STUDY --checkpoint best`"
            raise StudyFailed("the trained state that this study begins with cannot be read", hints=(hint,))

    def admit(self, training: Training) -> None:
        """Have it trained and evaluated; what is still under way from an earlier driver is waited for."""
        if not self._adopting.trains(training.trial) and not training.is_trained:
            at = training.at
            self.facts.append(
                TrialAdmitted(
                    training.trial,
                    training.budget,
                    training.state,
                    None,
                    at.epoch,
                    at.visited,
                    training.order,
                    int(training.trial),
                )
            )
        for step, state, lacks in training.unmeasured(self._ledger.book.results, self._parts):
            missing = lacks - self._adopting.evaluates(state)
            if missing:
                self.facts.append(EvaluationWanted(training.trial, step - 1, state, missing))
        self.report(training)

    def hopped(self, trial: TrialId, state: str) -> None:
        """It has come to this state."""
        training = self._all.get(trial)
        if training is not None:
            training.hopped(state, self._ledger.book.made[state].at)
            training.order = training.order[1:]
            self._keep(training)

    def report(self, training: Training) -> None:
        for one in training.news(self._ledger.book.results, self._parts):
            self.news.append(one)
            if isinstance(one, Reported):
                self._compare(training, one)
        self._keep(training)

    def _compare(self, training: Training, said: Reported) -> None:
        value, best = said.metrics.get(self._ground.spec.metric, math.nan), self._ledger.book.best
        sign = 1.0 if self._ground.spec.goal is Goal.MAX else -1.0
        if math.isfinite(value) and (best is None or sign * value > sign * best.value):
            state = training.ends[said.step]
            self._ledger.write(
                "best",
                trial=training.trial,
                step=said.step,
                state=state,
                value=value,
                params=dict(training.params),
            )
            self._states.keep("best", {state})

    def _keep(self, training: Training) -> None:
        for step in [step for step in training.ends if step < training.told]:
            del training.ends[step]
        self._states.keep(training.trial, training.kept())

    # -- endings
    # ------------------------------------------------------------------------------------------------------

    def end(self, trial: TrialId, *, keep: bool) -> None:
        """keep: the state after the last epoch that was reported."""
        training, left = self._all.get(trial), self._ledger.book.left.get(trial)
        state, epoch = "", 0
        if keep and training is not None:
            state, epoch = training.ends.get(training.told, ""), training.told
        elif keep and left is not None:
            state, epoch = left.state, left.epoch
        self._ledger.write("left", trial=trial, state=state, epoch=epoch)
        self._give_up(trial, {state})

    def fail(self, trial: TrialId, error: str, traceback: str = "") -> None:
        if trial in self._all:
            self._give_up(trial, set())
            self.news.append(TrialFailed(trial, error, traceback))

    def go_back(self, trial: TrialId) -> None:
        """Its newest state is gone for good: from the newest before that is not."""
        training = self._all.pop(trial, None)
        if training is not None:
            self._withdraw(trial)
            self._ground.say(
                f"trial {trial}: its state was lost with its worker; it goes on from an older one"
            )
            self.begin(Work(trial, training.params, training.budget, training.told, resumed=True))
            # else it might go back for ever
            self._all[trial].losses, self._all[trial].lacks = training.losses, training.lacks

    def go_back_with_the_lost(self) -> None:
        for training in list(self):
            unmeasured = [state for step, state in training.ends.items() if step > training.told]
            if not all(map(self._states.is_there, [training.state, *unmeasured])):
                self.go_back(training.trial)

    def _give_up(self, trial: TrialId, kept: set[str]) -> None:
        self.news = [one for one in self.news if one.trial != trial]
        if self._all.pop(trial, None) is not None:
            self._withdraw(trial)
        self._states.keep(trial, kept)

    def _withdraw(self, trial: TrialId) -> None:
        self.facts.append(TrialWithdrawn(trial))
        for worker, unit in self._adopting.cancel(trial):
            self._crew.cancel(worker, unit)

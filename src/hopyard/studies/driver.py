"""The driver of a study: asks its searcher, has trials trained, tells what they report, and writes all of it
down first.

One thread decides. What the searcher was asked and told stands in the journal, in order: a driver that begins
again rebuilds the searcher by making the same calls, hands the trainer what was under way, and goes on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hopyard.domain.ids import TrialId
from hopyard.domain.study import StudySpec
from hopyard.domain.trial import Asked, Proposal, Report, SearchState, StudyEvent, Told, TrialOutcome, Verdict
from hopyard.errors import StudyFailed
from hopyard.interfaces.searcher import ReleasesTrials, Searcher
from hopyard.searchers.replay import replay
from hopyard.studies.codec import event_json, event_of_json
from hopyard.studies.journal import CONTINUED
from hopyard.studies.standing import Best, Phase, Standing, Trial
from hopyard.studies.trainer import News, Reached, Records, Reported, Trainer, TrialFailed, Work

WAIT_S = 1.0
_FIRST_TRIALS = 3  # so many at least must fail before the study is taken for broken
_NAMES_SHOWN = 8
# of a trial that is a run: no two have the same, whatever they said
_OWN_RUN = re.compile(r"^run [^\s:]+:? ")


class Audience(Protocol):
    """Who is told of what happened, after it was written down: curves, mirrors, people."""

    def began(self, proposal: Proposal) -> None: ...
    def reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None: ...
    def ended(self, trial: TrialId, phase: Phase, why: str) -> None: ...
    def stands(self, standing: Standing) -> None:
        """After each round of news."""
        ...


class Driver:
    """journal: of this attempt; past: all records before.
    stopping: whether to leave at the next chance, and go on later.

    Raises Conflict where the searcher answers otherwise than it did.
    """

    def __init__(
        self,
        spec: StudySpec,
        searcher: Searcher,
        *,
        journal: Records,
        past: Sequence[Mapping[str, Any]],
        audience: Audience,
        stopping: Callable[[], bool],
    ) -> None:
        self._spec, self._searcher, self._journal, self._audience, self._stopping = (
            spec,
            searcher,
            journal,
            audience,
            stopping,
        )
        self.standing = Standing(spec.goal)
        self._open: set[TrialId] = set()  # trials that the trainer has in hand
        # the searcher had nothing to propose, and was told nothing since
        self._answer: SearchState | None = None
        self._released: set[TrialId] = set()
        self._metrics: dict[TrialId, Mapping[str, float]] = {}  # what each trial reported last
        self._errors: dict[TrialId, str] = {}
        self._failed_before = 0  # trials of the study that this one continues
        # states of completed trials may be asked for
        self._copies = spec.searcher.name == "pbt" or ":" in spec.searcher.name
        self._take_up(past)

    @property
    def best(self) -> Best | None:
        return self.standing.best

    def run(self, trainer: Trainer) -> bool:
        """Drive the study to its end (True), or until it is to leave (False).
        Raises StudyFailed when nothing comes of it."""
        self._resume(trainer)
        while not self._stopping():
            done = self._fill(trainer)
            if done and not self._open:
                self._finish()
                return True
            for news in trainer.wait(WAIT_S):
                self._take(trainer, news)
            self._release(trainer)
            self._audience.stands(self.standing)
            self._check_first_trials()
        return False

    # -- what was before
    # ------------------------------------------------------------------------------------------------

    def _take_up(self, past: Sequence[Mapping[str, Any]]) -> None:
        events: list[StudyEvent] = []
        self._last: Mapping[str, Any] = {}
        for record in past:
            event = event_of_json(record)
            if event is not None:
                events.append(event)
                self.standing.take(event)
                self._note(event)
            if record.get("kind") == CONTINUED:
                self._failed_before = self.standing.count(Phase.FAILED)
            elif record.get("kind") == "done":
                self._last = {}
            elif record.get("kind") == "failed":
                self._errors[TrialId(record["trial"])] = str(record["error"])
            elif record.get("kind") == "reached":
                self._open.discard(TrialId(record["trial"]))
            if record.get("kind") == "told" and record.get("metrics"):
                self._metrics[TrialId(record["report"]["trial"])] = record["metrics"]
            if record.get("kind") in ("asked", "told", "reached"):
                self._last = record
        replay(self._searcher, events)

    def _note(self, event: StudyEvent) -> None:
        """Who is in the trainer's hands after an event."""
        if isinstance(event, Asked):
            if isinstance(event.answer, Proposal):
                self._open.add(event.answer.trial)
            return
        report = event.report
        final = report.outcome is not TrialOutcome.RUNNING
        if final or (
            event.verdict is Verdict.STOP and report.step < self.standing.trials[report.trial].proposal.budget
        ):
            self._open.discard(report.trial)

    def _resume(self, trainer: Trainer) -> None:
        """Hand over what was under way. Of the last record the effect may be missing."""
        if self._last.get("kind") == "reached":
            self._open.add(TrialId(self._last["trial"]))
        elif self._last.get("kind") == "told":
            trial = TrialId(self._last["report"]["trial"])
            if trial not in self._open:
                trainer.end(trial, keep=False)
        for trial in sorted(self._open, key=int):
            known = self.standing.trials[trial]
            self._begin(trainer, known.proposal, done=known.step, resumed=True)

    # -- asking
    # --------------------------------------------------------------------------------------------------------

    def _fill(self, trainer: Trainer) -> bool:
        """Ask while there is room; whether the searcher has nothing more to propose. It is asked again only
        after it was told something, so that the order of calls does not hang on how often somebody looked."""
        while self._answer is None and trainer.room() > 0 and not self._stopping():
            answer = self._searcher.ask()
            if isinstance(answer, SearchState):
                self._answer = answer
                break
            self._record(Asked(answer))
            self._begin(trainer, answer, done=self.standing.trials[answer.trial].step, resumed=False)
        if self._answer is SearchState.WAIT and not self._open:
            raise StudyFailed(
                "the searcher waits for news, and no trial is training",
                hints=("a searcher answers DONE when nothing is to come",),
            )
        return self._answer is SearchState.DONE

    def _begin(self, trainer: Trainer, proposal: Proposal, *, done: int, resumed: bool) -> None:
        self._open.add(proposal.trial)
        origin = None if proposal.start_from == proposal.trial else proposal.start_from
        trainer.start(Work(proposal.trial, proposal.params, proposal.budget, done, origin, resumed))
        self._audience.began(proposal)

    # -- telling
    # --------------------------------------------------------------------------------------------------------

    def _take(self, trainer: Trainer, news: News) -> None:
        if news.trial not in self._open:
            return  # late: it was ended meanwhile
        known = self.standing.trials[news.trial]
        match news:
            case Reported():
                self._reported(trainer, known, news)
            case TrialFailed():
                self._failed(trainer, known, news)
            case Reached() if news.budget == known.proposal.budget:
                self._reached(trainer, known, news)

    def _reported(self, trainer: Trainer, known: Trial, news: Reported) -> None:
        step = min(news.step, known.proposal.budget)
        if known.phase is not Phase.TRAINING or step <= known.step:
            return  # repeated, after a state was lost
        value = news.metrics.get(self._spec.metric)
        if value is None:
            self._fail(
                trainer, news.trial, f"it reported no `{self._spec.metric}`, but {_listed(news.metrics)}"
            )
        elif not math.isfinite(value):
            self._fail(
                trainer, news.trial, f"its `{self._spec.metric}` was {_shown(value)} after epoch {step}"
            )
        else:
            self._tell(trainer, Report(news.trial, step, float(value)), news.metrics)

    def _tell(self, trainer: Trainer, report: Report, metrics: Mapping[str, float]) -> None:
        verdict = self._searcher.tell(report)
        self._record(Told(report, verdict), metrics={name: float(value) for name, value in metrics.items()})
        self._metrics[report.trial] = metrics
        self._audience.reported(report.trial, report.step, metrics)
        known = self.standing.trials[report.trial]
        if report.trial not in self._open:  # stopped below its budget
            trainer.end(report.trial, keep=False)
            self._audience.ended(
                report.trial, known.phase, f"after epoch {report.step} of {known.proposal.budget}"
            )

    def _reached(self, trainer: Trainer, known: Trial, news: Reached) -> None:
        trial = news.trial
        if known.phase is Phase.TRAINING and known.step < known.proposal.budget:
            if known.value is None:
                self._fail(trainer, trial, f"it never reported `{self._spec.metric}`")
                return
            self._tell(
                trainer, Report(trial, known.proposal.budget, known.value), self._metrics.get(trial, {})
            )
        self._open.discard(trial)
        if (self._last.get("kind"), self._last.get("trial"), self._last.get("budget")) != (
            "reached",
            trial,
            news.budget,
        ):
            self._write("reached", trial=trial, budget=news.budget)
        trainer.end(
            trial, keep=known.phase is Phase.PAUSED or (known.phase is Phase.COMPLETED and self._copies)
        )
        if known.phase is not Phase.PAUSED:
            self._audience.ended(trial, known.phase, "")

    def _failed(self, trainer: Trainer, known: Trial, news: TrialFailed) -> None:
        if known.phase is Phase.TRAINING:
            self._fail(trainer, news.trial, news.error, news.traceback)
            return
        # its value stands
        self._journal.write("note", trial=news.trial, text=f"after its last report: {news.error}")
        self._reached(trainer, known, Reached(news.trial, known.proposal.budget))

    def _fail(self, trainer: Trainer, trial: TrialId, error: str, traceback: str = "") -> None:
        """It has failed, alone."""
        self._journal.write("failed", trial=trial, error=error, traceback=traceback)
        self._errors[trial] = error
        report = Report(trial, self.standing.trials[trial].step, None, TrialOutcome.FAILED)
        self._record(Told(report, self._searcher.tell(report)))
        trainer.end(trial, keep=False)
        self._audience.ended(trial, Phase.FAILED, error)

    def _release(self, trainer: Trainer) -> None:
        """Paused trials that will never go on need no state."""
        if not isinstance(self._searcher, ReleasesTrials):
            return
        for trial in sorted(self._searcher.released() - self._released, key=int):
            if trial not in self._open:
                self._released.add(trial)
                trainer.end(trial, keep=False)

    def _record(self, event: StudyEvent, **more: Any) -> None:
        record = event_json(event)
        self._write(record.pop("kind"), **record, **more)
        self.standing.take(event)
        self._note(event)
        if isinstance(event, Told):
            self._answer = None

    def _write(self, kind: str, **fields: Any) -> None:
        self._journal.write(kind, **fields)
        self._last = {"kind": kind, **fields}

    # -- the end
    # --------------------------------------------------------------------------------------------------------

    def _check_first_trials(self) -> None:
        """A study that can only fail ends early."""
        failed = self.standing.count(Phase.FAILED) - self._failed_before
        if self.standing.best is None and failed >= max(_FIRST_TRIALS, self._spec.at_once):
            raise StudyFailed(f"all of the first {failed} trials failed: {self._said()}", hints=self._hints())

    def _finish(self) -> None:
        best = self.standing.best
        if best is None:
            count = self.standing.count(Phase.FAILED)
            if not count:
                raise StudyFailed("the searcher proposed no trial at all")
            raise StudyFailed(
                f"{'the only trial' if count == 1 else f'all {count} trials'} failed: {self._said()}",
                hints=self._hints(),
            )
        self._journal.write(
            "done",
            best={"trial": best.trial, "step": best.step, "value": best.value, "params": dict(best.params)},
        )
        self._audience.stands(self.standing)

    def _said(self) -> str:
        """What they said, each thing once."""
        said: dict[str, list[TrialId]] = {}
        for trial, error in self._errors.items():
            lines = [line for line in error.strip().splitlines() if not line.startswith("hint: ")]
            said.setdefault(_OWN_RUN.sub("", lines[-1]) if lines else "nothing", []).append(trial)
        first = sorted(said.items(), key=lambda one: -len(one[1]))[:3]
        return "; ".join(
            f"{error} (trial {trials[0]}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''})"
            for error, trials in first
        )

    def _hints(self) -> tuple[str, ...]:
        trial = next(iter(self._errors), TrialId("0"))
        more = f"`hop search show --trial {trial}` tells more"
        if self._spec.beginning is None:
            return (more,)
        return (
            more,
            "a fork goes on with a trained state: its parameters may not change the shape of the model",
        )


def _listed(metrics: Mapping[str, float]) -> str:
    names = sorted(metrics)
    return (
        ", ".join(f"`{name}`" for name in names[:_NAMES_SHOWN])
        + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")
        or "nothing"
    )


def _shown(value: float) -> str:
    return "not a number (NaN)" if math.isnan(value) else f"{value}"

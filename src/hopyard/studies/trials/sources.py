"""Which checkpoint a trial goes on from: the newest that is not beyond what its study has told the
searcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.study import StudySpec
from hopyard.errors import Forbidden
from hopyard.studies.server import StudyServer
from hopyard.studies.trials.launch import Launched, counts_epochs
from hopyard.studies.trials.reports import Epochs

Saved = Mapping[str, Any]  # a checkpoint, as the server lists them
_DELETED = "was deleted"


class Sources:
    """Knows all runs of trials, by their records. say: tells people what a trial lost."""

    def __init__(self, server: StudyServer, spec: StudySpec, say: Callable[[str], None]) -> None:
        self._server, self._spec, self._say = server, spec, say
        self._runs: dict[RunId, tuple[Launched, int]] = {}  # with what was told of its trial when it began
        self._names: dict[RunId, str] = {}
        self._told_none = False

    def launched(self, one: Launched, *, told: int) -> None:
        self._runs[one.run] = one, told

    def submitted(self, run: RunId, name: str) -> None:
        self._names[run] = name

    def find(self, whose: Launched, done: int, *, trial: TrialId) -> tuple[Saved, Launched] | None:
        """The newest checkpoint of this run after at most `done` epochs of its trial, else the one that it
        began with, else of the run before; and the run with the script that counts its step. None where there
        is none: what that costs `trial` is said."""
        lost, beyond, at = "", False, whose
        while True:
            saved, gone = self._saved(at.run)
            fit = self._fitting(saved, at, done - at.shift)
            if gone:
                lost = lost or f"run {self._names.get(at.run, at.run)} {gone}"
            if fit:
                return self._tell(trial, lost, fit[-1]), at
            beyond = beyond or bool(saved)
            if at.resume is None:
                break
            origin = at.resume
            saved, gone = self._saved(RunId(origin["run"]))
            began = [
                one for one in saved if (one["step"], one["manifest"]) == (origin["step"], origin["manifest"])
            ]
            if began:
                return self._tell(trial, lost, began[0]), at
            lost = lost or (
                f"the checkpoint of run {self._names.get(origin['run'], origin['run'])} that it "
                f"went on from {gone or _DELETED}"
            )
            before = self._runs.get(RunId(origin["run"]))
            if before is None or before[0].trial != at.trial:
                break
            at = before[0]
        if done:
            self._tell_nothing(
                trial,
                lost or (f"all checkpoints that are left are from beyond epoch {done}" if beyond else ""),
            )
        return None

    def _saved(self, run: RunId) -> tuple[Sequence[Saved], str]:
        """The run's checkpoints; and what became of a run that cannot be asked for them, else ""."""
        try:
            found = self._server.find_all(f"/runs/{run}/checkpoints", "checkpoints")
        except Forbidden:
            return (), "may not be read any more"
        return ((), _DELETED) if found is None else ([one for one in found if not one.get("damaged")], "")

    def _fitting(self, saved: Sequence[Saved], of: Launched, done: int) -> Sequence[Saved]:
        """Those after at most so many epochs, as the script counts: by its steps where those are a number of
        epochs, and by what had been reported until then. A script may count batches, or go on beyond its
        budget."""
        if not saved or not counts_epochs(self._spec):
            return saved
        reports = list(self._reports(of))

        def epochs_at(one: Saved) -> int:
            at = datetime.fromisoformat(one["created_at"]).timestamp()
            by_step = one["step"] if one["step"] <= of.last else 0
            return max(by_step, self._begun(of), *(epoch for time, epoch in reports if time <= at))

        return [one for one in saved if epochs_at(one) <= done]

    def _begun(self, of: Launched) -> int:
        """Epochs of the script that were done when the run began."""
        if of.resume is None:
            return 0
        told = self._runs[of.run][1] if of.run in self._runs else 0
        return of.resume["step"] if of.resume["step"] <= of.last else max(0, told - of.shift)

    def _reports(self, of: Launched) -> Iterator[tuple[float, int]]:
        """When the run reported which epoch. Those whose steps say no epoch are counted."""
        found = (self._server.find(f"/runs/{of.run}/metrics", names=self._spec.metric) or {"series": {}})[
            "series"
        ].get(self._spec.metric)
        if not found or not found["steps"]:
            return
        begun = self._begun(of)
        # what was logged without steps is numbered from 0
        epochs, counts = Epochs(begun, of.last), found["steps"][0] < begun
        for count, (step, time) in enumerate(zip(found["steps"], found["times"], strict=True), 1):
            yield time or 0.0, begun + count if counts else epochs.of(step)

    def _tell(self, trial: TrialId, lost: str, found: Saved) -> Saved:
        if lost:
            self._say(
                f"trial {trial}: {lost}; it goes on from the checkpoint of step {found['step']} of run "
                f"{self._names.get(found['run'], found['run'])}"
            )
        return found

    def _tell_nothing(self, trial: TrialId, why: str) -> None:
        if why:
            self._say(f"trial {trial}: {why}; it trains from the beginning")
        elif not self._told_none:
            self._told_none = True
            self._say(
                "the script saves no checkpoints (hop.bind and hop.loop, or hop.save): trials that go "
                "on start again from the beginning"
            )

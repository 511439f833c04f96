"""Selects the checkpoint from which a trial resumes: the newest one within the epochs that were reported to
the searcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.study import StudySpec
from hopyard.errors import Forbidden
from hopyard.studies.server_api import StudyApi
from hopyard.studies.trial_runs.epoch_reports import EpochCounter
from hopyard.studies.trial_runs.trial_spec import TrialRunSpec, counts_epochs

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_DELETED_TEXT = "was deleted"


class ResumeCheckpoints:
    """Knows all runs of trials, by their records. log_message: tells people what a trial lost."""

    def __init__(self, api: StudyApi, spec: StudySpec, log_message: Callable[[str], None]) -> None:
        self._api, self._spec, self._log_message = api, spec, log_message
        self._runs: dict[
            RunId, tuple[TrialRunSpec, int]
        ] = {}  # with what was told of its trial when it began
        self._names: dict[RunId, str] = {}
        self._warned_no_checkpoints = False

    def add_run(self, run_spec: TrialRunSpec, *, reported_epoch: int) -> None:
        self._runs[run_spec.run] = run_spec, reported_epoch

    def set_run_name(self, run: RunId, name: str) -> None:
        self._names[run] = name

    def find(
        self, run_spec: TrialRunSpec, done_epochs: int, *, trial: TrialId
    ) -> tuple[api.Checkpoint, TrialRunSpec] | None:
        """The newest checkpoint of this run after at most `done_epochs` epochs of its trial, else the one
        that it began with, else of the run before; and the run with the script that counts its step. None
        where there is none: what that costs `trial` is said."""
        lost, beyond, at = "", False, run_spec
        while True:
            saved, gone = self._list_checkpoints(at.run)
            fit = self._within_epochs(saved, at, done_epochs - at.epoch_shift)
            if gone:
                lost = lost or f"run {self._name_of(at.run)} {gone}"
            if fit:
                return self._log_lost(trial, lost, fit[-1]), at
            beyond = beyond or bool(saved)
            if at.resume is None:
                break
            origin = at.resume
            saved, gone = self._list_checkpoints(RunId(origin["run"]))
            began = [
                one for one in saved if (one["step"], one["manifest"]) == (origin["step"], origin["manifest"])
            ]
            if began:
                return self._log_lost(trial, lost, began[0]), at
            lost = lost or (
                f"the checkpoint of run {self._name_of(origin['run'])} that it "
                f"went on from {gone or _DELETED_TEXT}"
            )
            before = self._runs.get(RunId(origin["run"]))
            if before is None or before[0].trial != at.trial:
                break
            at = before[0]
        if done_epochs:
            self._log_restart(
                trial,
                lost
                or (f"all checkpoints that are left are from beyond epoch {done_epochs}" if beyond else ""),
            )
        return None

    def _list_checkpoints(self, run: RunId) -> tuple[Sequence[api.Checkpoint], str]:
        """The run's checkpoints; and what became of a run that cannot be asked for them, else ""."""
        try:
            found = self._api.find(lambda client: list(client.iterate_run_checkpoints(run)))
        except Forbidden:
            return (), "is no longer readable with this key"
        return (
            ((), _DELETED_TEXT) if found is None else ([one for one in found if not one.get("damaged")], "")
        )

    def _within_epochs(
        self, saved: Sequence[api.Checkpoint], run_spec: TrialRunSpec, done_epochs: int
    ) -> Sequence[api.Checkpoint]:
        """Those after at most so many epochs, as the script counts: by its steps where those are a number of
        epochs, and by what had been reported until then. A script may count batches, or go on beyond its
        budget."""
        if not saved or not counts_epochs(self._spec):
            return saved
        reports = list(self._reported_epochs(run_spec))

        def epochs_at(one: api.Checkpoint) -> int:
            at = datetime.fromisoformat(one["created_at"]).timestamp()
            by_step = one["step"] if one["step"] <= run_spec.last_epoch else 0
            return max(
                by_step, self._start_epoch(run_spec), *(epoch for time, epoch in reports if time <= at)
            )

        return [one for one in saved if epochs_at(one) <= done_epochs]

    def _start_epoch(self, run_spec: TrialRunSpec) -> int:
        """Epochs of the script that were done when the run began."""
        if run_spec.resume is None:
            return 0
        told = self._runs[run_spec.run][1] if run_spec.run in self._runs else 0
        return (
            run_spec.resume["step"]
            if run_spec.resume["step"] <= run_spec.last_epoch
            else max(0, told - run_spec.epoch_shift)
        )

    def _reported_epochs(self, run_spec: TrialRunSpec) -> Iterator[tuple[float, int]]:
        """When the run reported which epoch. Those whose steps say no epoch are counted."""
        metric = self._spec.metric
        series = self._api.find(lambda client: dict(client.iterate_run_metrics(run_spec.run, names=metric)))
        found = (series or {}).get(metric)
        if not found or not found["steps"]:
            return
        begun = self._start_epoch(run_spec)
        # what was logged without steps is numbered from 0
        epochs, counts = EpochCounter(begun, run_spec.last_epoch), found["steps"][0] < begun
        for count, (step, time) in enumerate(zip(found["steps"], found["times"], strict=True), 1):
            yield time or 0.0, begun + count if counts else epochs.epoch_of(step)

    def _name_of(self, run: str) -> str:
        """Returns the name of the run; its id if the name is unknown."""
        return self._names.get(RunId(run), run)

    def _log_lost(self, trial: TrialId, reason: str, checkpoint: api.Checkpoint) -> api.Checkpoint:
        if reason:
            self._log_message(
                f"trial {trial}: {reason}; it resumes from the checkpoint of step {checkpoint['step']} of "
                f"run {self._name_of(checkpoint['run'])}"
            )
        return checkpoint

    def _log_restart(self, trial: TrialId, reason: str) -> None:
        if reason:
            self._log_message(f"trial {trial}: {reason}; it starts from the beginning")
        elif not self._warned_no_checkpoints:
            self._warned_no_checkpoints = True
            self._log_message(
                "the script saves no checkpoints (hop.bind and hop.loop, or hop.save): trials that go "
                "on start again from the beginning"
            )

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
from hopyard.studies.trial_runs.metric_reports import MetricReport
from hopyard.studies.trial_runs.report_unit import ReportUnit
from hopyard.studies.trial_runs.trial_spec import TrialRunSpec, unit_settings

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_DELETED_TEXT = "was deleted"


class ResumeCheckpoints:
    """Finds checkpoints of all runs of trials. log_message: informs users about lost work of a trial.

    takes_budget: whether the script takes the parameter of its budget; None if it is unknown.
    """

    def __init__(self, api: StudyApi, spec: StudySpec, log_message: Callable[[str], None]) -> None:
        self._api, self._spec, self._log_message = api, spec, log_message
        self._runs: dict[
            RunId, tuple[TrialRunSpec, int]
        ] = {}  # with the reported epoch of its trial when it began
        self._names: dict[RunId, str] = {}
        self._warned_no_checkpoints = False
        self.takes_budget: bool | None = None

    def add_run(self, run_spec: TrialRunSpec, *, reported_epoch: int) -> None:
        self._runs[run_spec.run] = run_spec, reported_epoch

    def set_run_name(self, run: RunId, name: str) -> None:
        self._names[run] = name

    def find(
        self, run_spec: TrialRunSpec, done_epochs: int, *, trial: TrialId
    ) -> tuple[api.CheckpointOut, TrialRunSpec] | None:
        """Returns the newest checkpoint of this run after at most `done_epochs` epochs of its trial, and the
        run whose script counts its step.

        If there is none, takes the checkpoint from which the run started, then those of the run before.
        Returns None if none is left, and logs the consequence for `trial`.
        """
        lost_text, has_later, current = "", False, run_spec
        while True:
            checkpoints, unavailable_text = self._list_checkpoints(current.run)
            usable = self._within_epochs(checkpoints, current, done_epochs - current.epoch_shift)
            if unavailable_text:
                lost_text = lost_text or f"run {self._name_of(current.run)} {unavailable_text}"
            if usable:
                return self._log_lost(trial, lost_text, usable[-1]), current
            has_later = has_later or bool(checkpoints)
            if current.resume is None:
                break
            origin = current.resume
            checkpoints, unavailable_text = self._list_checkpoints(RunId(origin["run"]))
            start_checkpoints = [
                checkpoint
                for checkpoint in checkpoints
                if (checkpoint["step"], checkpoint["manifest"]) == (origin["step"], origin["manifest"])
            ]
            if start_checkpoints:
                return self._log_lost(trial, lost_text, start_checkpoints[0]), current
            lost_text = lost_text or (
                f"the checkpoint of run {self._name_of(origin['run'])} that it "
                f"went on from {unavailable_text or _DELETED_TEXT}"
            )
            previous = self._runs.get(RunId(origin["run"]))
            if previous is None or previous[0].trial != current.trial:
                break
            current = previous[0]
        if done_epochs:
            self._log_restart(
                trial,
                lost_text
                or (f"all remaining checkpoints are from after epoch {done_epochs}" if has_later else ""),
            )
        return None

    def _list_checkpoints(self, run: RunId) -> tuple[Sequence[api.CheckpointOut], str]:
        """Returns the run's checkpoints, and why the run is not available, or ""."""
        try:
            rows = self._api.find(lambda client: list(client.iterate_run_checkpoints(run)))
        except Forbidden:
            return (), "is no longer readable with this key"
        return (
            ((), _DELETED_TEXT)
            if rows is None
            else ([row for row in rows if not row.get("damaged") and not row.get("path")], "")
        )

    def _within_epochs(
        self, checkpoints: Sequence[api.CheckpointOut], run_spec: TrialRunSpec, done_epochs: int
    ) -> Sequence[api.CheckpointOut]:
        """Returns the checkpoints after at most this many epochs of the script.

        The epoch of a checkpoint is its step, if that can be a number of epochs, or the epochs reported until
        then. A script may count batches, or continue beyond its budget.
        """
        if not checkpoints or not self._spec.has_budget:
            return checkpoints
        if self.takes_budget and done_epochs >= run_spec.last_epoch:
            return checkpoints  # the script ended at its budget
        reports = list(self._reported_epochs(run_spec))

        def epochs_at(checkpoint: api.CheckpointOut) -> int:
            saved_at = datetime.fromisoformat(checkpoint["created_at"]).timestamp()
            by_step = checkpoint["step"] if checkpoint["step"] <= run_spec.last_epoch else 0
            return max(
                by_step, self._start_epoch(run_spec), *(epoch for time, epoch in reports if time <= saved_at)
            )

        return [checkpoint for checkpoint in checkpoints if epochs_at(checkpoint) <= done_epochs]

    def _start_epoch(self, run_spec: TrialRunSpec) -> int:
        """Returns the completed epochs of the script at the start of the run."""
        if run_spec.resume is None:
            return 0
        reported_epoch = self._runs[run_spec.run][1] if run_spec.run in self._runs else 0
        return (
            run_spec.resume["step"]
            if run_spec.resume["step"] <= run_spec.last_epoch
            else max(0, reported_epoch - run_spec.epoch_shift)
        )

    def _reported_epochs(self, run_spec: TrialRunSpec) -> Iterator[tuple[float, int]]:
        """Yields the time and the epoch of each report of the run. Reports whose steps are not epochs are
        counted."""
        metric = self._spec.metric
        series_by_metric = self._api.find(
            lambda client: dict(client.iterate_run_metrics(run_spec.run, names=metric))
        )
        series = (series_by_metric or {}).get(metric)
        if not series or not series["steps"]:
            return
        start_epoch = self._start_epoch(run_spec)
        unit = ReportUnit(start_epoch, unit_settings(self._spec, run_spec))
        # points without steps are numbered from 0
        counts = series["steps"][0] < start_epoch
        for step, time in zip(series["steps"], series["times"], strict=True):
            report = MetricReport(None if counts else step, {}, time or 0.0)
            for epoch, counted in unit.add(report, takes_budget=bool(self.takes_budget)):
                yield counted.time, epoch

    def _name_of(self, run: str) -> str:
        """Returns the name of the run; its id if the name is unknown."""
        return self._names.get(RunId(run), run)

    def _log_lost(self, trial: TrialId, reason: str, checkpoint: api.CheckpointOut) -> api.CheckpointOut:
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
                "the script saves no checkpoints (hop.bind and hop.loop, or hop.save): resumed "
                "trials start from the beginning"
            )

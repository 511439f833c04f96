"""The driver's process: connects searcher, trainer, journal and curves, and drives the study to its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from hopyard.api_client.run_access import read_run_access
from hopyard.config.schemas.study_json import study_to_journal, without_values
from hopyard.domain.study import CONTINUE_EXIT_CODE, Parallel
from hopyard.errors import Forbidden, HopyardError, StorageFull, StudyFailed, WorkersLost
from hopyard.sdk import session
from hopyard.sdk.api import log
from hopyard.sdk.warn_once import warn_once
from hopyard.searchers.registry import build
from hopyard.studies.checkpoint_files import find_checkpoint, write_checkpoint
from hopyard.studies.curves import Curves, displayed_points, read_points
from hopyard.studies.driver import StudyDriver
from hopyard.studies.journal import CONTINUED, STREAM, Journal, JournalRecord, read_records
from hopyard.studies.mirrors.mirror import create_mirrors
from hopyard.studies.peer_exits import PeerExits
from hopyard.studies.process_context import ProcessContext, load_process_context
from hopyard.studies.server_api import StudyApi
from hopyard.studies.stop_requests import TrialStopRequests
from hopyard.studies.study_reporter import StudyReporter
from hopyard.studies.trainer import Trainer, TrainerContext
from hopyard.trainables.load import load_attribute

TERMINATED_EXIT_CODE = 128 + signal.SIGTERM
_MAX_RESTARTS = 3  # for missing workers, in a row without a report
_DISK_RETRY_S = 1.0


def main() -> int:
    """Returns the exit code: 0 if the study has a best trial, 1 if it failed.

    143 means that it was requested to continue in another attempt, 75 that it requests that itself.
    """
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    study: _StudyProcess | None = None
    try:
        study = _StudyProcess(load_process_context(), stopping.is_set)
        return 0 if study.run() else TERMINATED_EXIT_CODE
    except HopyardError as error:
        return _exit_code_of_error(error, study, stopping)


def _exit_code_of_error(
    error: HopyardError, study: _StudyProcess | None, stop_requested: threading.Event
) -> int:
    try:
        should_continue = (
            not stop_requested.is_set()
            and study is not None
            and isinstance(error, WorkersLost)
            and study.should_retry(error)
        )
    except StorageFull as storage_error:  # it was stopped while it waited for disk space
        error, should_continue = storage_error, False
    if stop_requested.is_set():
        return TERMINATED_EXIT_CODE
    if should_continue:
        return CONTINUE_EXIT_CODE
    message = "\n".join([f"error: {error.message}", *(f"hint: {hint}" for hint in error.hints)])
    print(
        message, file=sys.stderr, flush=True
    )  # the last line that is not a hint becomes the run's exit reason
    return 1


class _StudyProcess:
    def __init__(self, context: ProcessContext, is_stopping: Callable[[], bool]) -> None:
        self._context, self._is_stopping = context, is_stopping
        self._api = StudyApi(context.replica_dir, is_stopping=is_stopping, log_message=warn_once)
        self._journal = Journal(context.streams_dir / STREAM, wait_for_space=self._wait_for_disk)
        self._earlier_records = self._load_earlier_records()
        self._past_records: list[Mapping[str, Any]] = [*self._earlier_records, *self._journal.past_records]
        # of the first attempt
        self._started_at = (
            float(self._past_records[0].get("t", time.time())) if self._past_records else time.time()
        )
        if context.spec.continues:
            self._continue_journal(context.spec.continues)
        self._session = session.current_session()
        self._checkpoint_step = max(
            (int(record["step"]) for record in self._past_records if record.get("kind") == "saved"),
            default=context.restored_step or 0,
        )
        self._driver: StudyDriver | None = None
        self._stop_requests = (
            TrialStopRequests(context.run, read_run_access(context.replica_dir))
            if context.spec.parallel is Parallel.MOP
            else None
        )
        self._peer_exits = PeerExits(context.gang_dir, context.rank)

    def run(self) -> bool:
        """Returns whether the study has ended; otherwise another attempt continues it."""
        spec, context = self._context.spec, self._context
        folder = Path.cwd()
        searcher = build(spec, lambda text: load_attribute(text, folder))
        start_record = {"spec": study_to_journal(spec), "attempt": context.attempt, "pid": os.getpid()}
        self._journal.write("study", **start_record)
        self._past_records.append({"kind": "study", **start_record})
        curves = self._curves()
        mirrors = create_mirrors(spec, folder / "tensorboard", warn_once, study=context.run_name)
        reporter = StudyReporter(
            spec,
            curves,
            mirrors,
            summarise=self._session.record_summary,
            progress=self._report_progress,
            on_update=self._poll_peers,
        )
        driver = self._driver = StudyDriver(
            spec,
            searcher,
            journal=self._journal,
            past_records=self._past_records,
            listener=reporter,
            is_stopping=self._is_stopping,
            elapsed_s=lambda: max(0.0, time.time() - self._started_at),
            stop_requests=lambda: () if self._stop_requests is None else self._stop_requests.trials,
        )
        trainer = self._trainer()
        completed = False
        try:
            completed = driver.run(trainer)
        finally:
            trainer.close(completed=completed)
            reporter.close(driver.state, completed=completed)
            mirrors.close()
            self._api.close()
            if self._stop_requests is not None:
                self._stop_requests.close()
        return completed

    def should_retry(self, error: WorkersLost) -> bool:
        """Returns whether it should continue in another attempt: not repeatedly without any report of a
        trial."""
        earlier_restarts = 0
        for record in reversed([*self._earlier_records, *self._journal.read()]):
            if record.get("kind") in ("told", CONTINUED):
                break
            earlier_restarts += record.get("kind") == "restart"
        if earlier_restarts >= _MAX_RESTARTS:
            warn_once(
                f"{earlier_restarts} earlier attempts ended in this way, with no report of a trial in between"
            )
            return False
        self._journal.write("restart", reason=error.message)
        # last: the attempt's exit reason
        print(f"{error.message}; the study continues with new workers", file=sys.stderr, flush=True)
        return True

    def _load_earlier_records(self) -> list[JournalRecord]:
        """Returns the records of earlier attempts. All of them were shipped, or are lost."""
        number = int(self._context.attempt.rpartition(".")[2])
        return self._load_records(self._context.run, before=number) if number > 1 else []

    def _continue_journal(self, study: str) -> None:
        """Copies the journal of the study that this one continues, because that study may be deleted later.

        If a driver was killed meanwhile, copies the rest: no other record is written before.
        """
        if _has_continued(self._past_records, study):
            return
        name, records = self._load_ended_study(study)
        for record in records[len(self._past_records) :]:
            is_study = record.get("kind") == "study"  # an earlier version wrote the values of variables
            copy = {**record, "spec": without_values(record["spec"])} if is_study else record
            self._journal.copy_record(copy)
            self._past_records.append(copy)
        mark = {"run": study, "name": name}
        self._journal.write(CONTINUED, **mark)
        self._past_records.append({"kind": CONTINUED, **mark})

    def _load_ended_study(self, study: str) -> tuple[str, list[JournalRecord]]:
        """Returns the name and the journal of a study that has ended.

        If it ended before it had copied the journal of its own predecessor, returns that journal. Raises
        StudyFailed if a study was deleted or may not be read.
        """
        try:
            run = self._api.find(lambda client: client.get_run(study))
        except Forbidden as error:
            raise StudyFailed(
                f"the parent study cannot be read: {error.message}", hints=error.hints
            ) from error
        if run is None:
            raise StudyFailed(
                "the parent study was deleted before this study started",
                hints=("run `hop search FILE.yaml` to start a new study",),
            )
        records, study_spec = self._load_records(study), run["spec"].get("study")
        predecessor = study_spec.get("continues") if study_spec else None
        if predecessor and not _has_continued(records, predecessor):
            records = self._load_ended_study(predecessor)[1]
        return str(run["name"]), records

    def _load_records(self, run: str, **only: int) -> list[JournalRecord]:
        data = b""
        while part := self._api.get_bytes(f"/runs/{run}/journal", offset=len(data), **only):
            data += part
        return list(read_records(data))

    def _curves(self) -> Curves:
        spec, context = self._context.spec, self._context
        points = read_points(context.streams_dir / "metrics")
        if self._past_records:
            points |= displayed_points(
                self._api.find(lambda client: dict(client.iterate_run_metrics(context.run))) or {}
            )
        curves = Curves(
            spec.metric,
            spec.goal,
            _log_metrics,
            all_metrics=spec.parallel is Parallel.MOP,
            known_points=points,
        )
        curves.replay(self._past_records)
        return curves

    def _trainer(self) -> Trainer:
        context = self._context
        self._record_ended_workers()
        trainer_context = TrainerContext(
            spec=context.spec,
            journal=self._journal,
            past_records=self._past_records,
            log_message=warn_once,
            save_checkpoint=self._save_checkpoint,
            restored_checkpoint=find_checkpoint(
                context.replica_dir, context.restored_dir, context.restored_step
            ),
            dataset_dir=context.dataset_dir,
            secret=context.secret,
            listen_address=context.driver_address,
            is_stopping=self._is_stopping,
            best_trial=lambda: (
                None if self._driver is None or self._driver.best is None else self._driver.best.trial
            ),
        )
        if context.spec.parallel is Parallel.TRIALS:
            from hopyard.studies.trial_runs.trainer import TrialRunTrainer

            return TrialRunTrainer(trainer_context, self._api, context.run)
        from hopyard.mop_runtime.driver.mop_trainer import open_mop_trainer

        if context.dataset_dir is not None and context.spec.mop is not None:
            from hopyard.datasets.partitions.split import check_partitions

            # errors in the data are detected before any worker reads it
            check_partitions(
                context.dataset_dir, context.spec.mop.partitions, dataset=context.spec.mop.dataset
            )
        return open_mop_trainer(trainer_context, context.gang_dir / "states")

    def _save_checkpoint(self, files: Mapping[str, Path], states: Any) -> None:
        """Called from any thread of the trainer, one at a time."""
        self._checkpoint_step += 1
        best = self._driver.best if self._driver is not None else None
        metrics = {} if best is None else {self._context.spec.metric: best.value}
        write_checkpoint(
            self._context.replica_dir, self._session.events, self._checkpoint_step, files, metrics, states
        )
        self._journal.write("saved", step=self._checkpoint_step, states=states)

    def _record_ended_workers(self) -> None:
        """Records workers that ended while no driver ran, so that they are not waited for."""
        events = {
            record["worker"]: record["event"]
            for record in self._past_records
            if record.get("kind") == "worker"
        }
        for worker, reason in self._poll_peers():
            if events.get(worker) == "joined":
                self._journal.write("worker", worker=worker, event="lost", detail=reason)
                self._past_records.append(
                    {"kind": "worker", "worker": worker, "event": "lost", "detail": reason}
                )

    def _poll_peers(self) -> list[tuple[str, str]]:
        exits = self._peer_exits.poll_failed()
        for worker, reason in exits:
            self._journal.write("worker", worker=worker, event="ended", detail=reason)
            warn_once(f"{worker} was lost: {reason}")
        if self._context.spec.mop is not None:
            self._peer_exits.check_workers_remain(self._context.spec.mop.workers)
        return exits

    def _report_progress(self, ended_count: int, total: int | None) -> None:
        self._session.events.append("progress", done=ended_count, total=total, unit="trial")

    def _wait_for_disk(self, error: OSError) -> bool:
        warn_once(f"the study is paused: its journal cannot be written ({error.strerror})", kind="journal")
        time.sleep(_DISK_RETRY_S)
        return not self._is_stopping()


def _has_continued(records: Iterable[JournalRecord], study: str) -> bool:
    return any(record.get("kind") == CONTINUED and record["run"] == study for record in records)


def _log_metrics(values: Mapping[str, float], /, *, step: int) -> None:
    log(values, step=step)


if __name__ == "__main__":
    sys.exit(main())

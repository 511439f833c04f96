"""The driver's process: puts searcher, trainer, journal and curves together, and drives the study to its
end."""

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

from hopyard.config.schemas.study_json import study_to_json
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
from hopyard.studies.study_reporter import StudyReporter
from hopyard.studies.trainer import Trainer, TrainerContext
from hopyard.trainables.load import load_attribute

TERMINATED_EXIT_CODE = 128 + signal.SIGTERM
_MAX_RESTARTS = 3  # for want of workers, one after another without a report
_DISK_RETRY_S = 1.0


def main() -> int:
    """Returns the exit code: 0 when the study has a best trial, 1 when nothing came of it, 143 when it was
    asked to go on in another attempt, 75 when it asks for that itself."""
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
        again = (
            not stop_requested.is_set()
            and study is not None
            and isinstance(error, WorkersLost)
            and study.should_retry(error)
        )
    except StorageFull as full:  # it was asked to leave as it waited for space to write that down
        error, again = full, False
    if stop_requested.is_set():
        return TERMINATED_EXIT_CODE
    if again:
        return CONTINUE_EXIT_CODE
    told = "\n".join([f"error: {error.message}", *(f"hint: {hint}" for hint in error.hints)])
    print(told, file=sys.stderr, flush=True)  # its last line that is no hint becomes the run's exit reason
    return 1


class _StudyProcess:
    def __init__(self, context: ProcessContext, is_stopping: Callable[[], bool]) -> None:
        self._context, self._is_stopping = context, is_stopping
        self._api = StudyApi(context.replica_dir, is_stopping=is_stopping, log_message=warn_once)
        self._journal = Journal(context.streams_dir / STREAM, wait_for_space=self._wait_for_disk)
        self._earlier_records = self._load_earlier_records()
        self._past_records: list[Mapping[str, Any]] = [*self._earlier_records, *self._journal.past_records]
        if context.spec.continues:
            self._continue_journal(context.spec.continues)
        self._session = session.current_session()
        self._checkpoint_step = max(
            (int(record["step"]) for record in self._past_records if record.get("kind") == "saved"),
            default=context.restored_step or 0,
        )
        self._driver: StudyDriver | None = None
        self._peer_exits = PeerExits(context.gang_dir, context.rank)

    def run(self) -> bool:
        """Whether the study has ended; else it goes on later."""
        spec, place = self._context.spec, self._context
        folder = Path.cwd()
        searcher = build(spec, lambda text: load_attribute(text, folder))
        begun = {"spec": study_to_json(spec), "attempt": place.attempt, "pid": os.getpid()}
        self._journal.write("study", **begun)
        self._past_records.append({"kind": "study", **begun})
        curves = self._curves()
        mirrors = create_mirrors(spec, folder / "tensorboard", warn_once, study=place.run_name)
        outlet = StudyReporter(
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
            listener=outlet,
            is_stopping=self._is_stopping,
        )
        trainer = self._trainer()
        ended = False
        try:
            ended = driver.run(trainer)
        finally:
            trainer.close(completed=ended)
            outlet.close(driver.state, completed=ended)
            mirrors.close()
            self._api.close()
        return ended

    def should_retry(self, error: WorkersLost) -> bool:
        """Whether it does: not over and over without any news of a trial."""
        before = 0
        for record in reversed([*self._earlier_records, *self._journal.read()]):
            if record.get("kind") in ("told", CONTINUED):
                break
            before += record.get("kind") == "restart"
        if before >= _MAX_RESTARTS:
            warn_once(
                f"{before} attempts before this one ended so, and no trial reported anything in between"
            )
            return False
        self._journal.write("restart", reason=error.message)
        # last: the attempt's exit reason
        print(f"{error.message}; the study continues with new workers", file=sys.stderr, flush=True)
        return True

    def _load_earlier_records(self) -> list[JournalRecord]:
        """What earlier attempts wrote. All of it has been shipped, or is lost for good."""
        number = int(self._context.attempt.rpartition(".")[2])
        return self._load_records(self._context.run, before=number) if number > 1 else []

    def _continue_journal(self, study: str) -> None:
        """Copy the journal of the study that this one continues, which may be deleted then; or the rest of
        it, where a driver was killed meanwhile: nothing else is written before."""
        if _has_continued(self._past_records, study):
            return
        name, records = self._load_ended_study(study)
        for record in records[len(self._past_records) :]:
            self._journal.copy_record(record)
            self._past_records.append(record)
        mark = {"run": study, "name": name}
        self._journal.write(CONTINUED, **mark)
        self._past_records.append({"kind": CONTINUED, **mark})

    def _load_ended_study(self, study: str) -> tuple[str, list[JournalRecord]]:
        """The name and the journal of a study that has ended; the journal of the one that it was to continue,
        where it ended before it had all of that. Raises StudyFailed where one was deleted or may not be
        read."""
        try:
            found = self._api.find(lambda client: client.get_run(study))
        except Forbidden as refused:
            raise StudyFailed(
                f"the parent study cannot be read: {refused.message}", hints=refused.hints
            ) from refused
        if found is None:
            raise StudyFailed(
                "the parent study was deleted before this study started",
                hints=("run `hop search FILE.yaml` to start a new study",),
            )
        records, study_spec = self._load_records(study), found["spec"].get("study")
        before = study_spec.get("continues") if study_spec else None
        if before and not _has_continued(records, before):
            records = self._load_ended_study(before)[1]
        return str(found["name"]), records

    def _load_records(self, run: str, **only: int) -> list[JournalRecord]:
        data = b""
        while part := self._api.get_bytes(f"/runs/{run}/journal", offset=len(data), **only):
            data += part
        return list(read_records(data))

    def _curves(self) -> Curves:
        spec, place = self._context.spec, self._context
        known = read_points(place.streams_dir / "metrics")
        if self._past_records:
            known |= displayed_points(
                self._api.find(lambda client: dict(client.iterate_run_metrics(place.run))) or {}
            )
        curves = Curves(
            spec.metric,
            spec.goal,
            _log_metrics,
            all_metrics=spec.parallel is Parallel.MOP,
            known_points=known,
        )
        curves.replay(self._past_records)
        return curves

    def _trainer(self) -> Trainer:
        place = self._context
        self._record_ended_workers()
        ground = TrainerContext(
            spec=place.spec,
            journal=self._journal,
            past_records=self._past_records,
            log_message=warn_once,
            save_checkpoint=self._save_checkpoint,
            restored_checkpoint=find_checkpoint(place.replica_dir, place.restored_dir, place.restored_step),
            dataset_dir=place.dataset_dir,
            secret=place.secret,
            listen_address=place.driver_address,
            is_stopping=self._is_stopping,
            best_trial=lambda: (
                None if self._driver is None or self._driver.best is None else self._driver.best.trial
            ),
        )
        if place.spec.parallel is Parallel.TRIALS:
            from hopyard.studies.trial_runs.trainer import TrialRunTrainer

            return TrialRunTrainer(ground, self._api, place.run)
        from hopyard.mop_runtime.driver.mop_trainer import open_mop_trainer

        if place.dataset_dir is not None and place.spec.mop is not None:
            from hopyard.datasets.partitions.split import check_partitions

            # what is wrong with the data is known before any worker reads it
            check_partitions(place.dataset_dir, place.spec.mop.partitions, dataset=place.spec.mop.dataset)
        return open_mop_trainer(ground, place.gang_dir / "states")

    def _save_checkpoint(self, files: Mapping[str, Path], states: Any) -> None:
        """In whatever thread the trainer likes, one at a time."""
        self._checkpoint_step += 1
        best = self._driver.best if self._driver is not None else None
        metrics = {} if best is None else {self._context.spec.metric: best.value}
        write_checkpoint(
            self._context.replica_dir, self._session.events, self._checkpoint_step, files, metrics, states
        )
        self._journal.write("saved", step=self._checkpoint_step, states=states)

    def _record_ended_workers(self) -> None:
        """Workers that ended while no driver was there to see it: they are not waited for."""
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
        found = self._peer_exits.poll_failed()
        for worker, reason in found:
            self._journal.write("worker", worker=worker, event="ended", detail=reason)
            warn_once(f"{worker} was lost: {reason}")
        if self._context.spec.mop is not None:
            self._peer_exits.check_workers_remain(self._context.spec.mop.workers)
        return found

    def _report_progress(self, ended: int, total: int | None) -> None:
        self._session.events.append("progress", done=ended, total=total, unit="trial")

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

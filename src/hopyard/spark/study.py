"""A study whose workers are Spark tasks and whose driver is the Spark driver's process."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopyard.config.schemas.study_json import study_from_json, study_to_json
from hopyard.domain.ids import TrialId
from hopyard.domain.study import BudgetUnit, StudySpec
from hopyard.domain.trial import Proposal
from hopyard.errors import SpecError
from hopyard.mop_runtime.driver.mop_trainer import open_mop_trainer
from hopyard.searchers.registry import build
from hopyard.spark.barrier import BarrierStage, WorkerSetup, scratch_dir
from hopyard.spark.mop_trainer import SparkMopTrainer
from hopyard.spark.partition_writer import StoredFrame
from hopyard.spark.summary import Summary
from hopyard.studies.driver import StudyDriver
from hopyard.studies.journal import STREAM, Journal, read_records
from hopyard.studies.mirrors.mirror import Mirrors, create_mirrors
from hopyard.studies.study_state import StudyState, TrialPhase
from hopyard.studies.trainer import RestoredCheckpoint, TrainerContext
from hopyard.trainables.load import load_attribute

_WORKER_EXIT_TIMEOUT_S = 30.0  # for workers to exit
_STATES_DIR = "states"


class SparkStudy:
    """folder: on the driver's disk, with journal, saved states and TensorBoard files. An interrupted study
    resumes from it."""

    def __init__(
        self,
        spark: Any,
        spec: StudySpec,
        stored: StoredFrame,
        *,
        trainable: bytes,
        folder: Path,
        host: str,
        no_worker_timeout_s: float,
    ) -> None:
        self._spark, self._spec, self._stored, self._trainable = spark, spec, stored, trainable
        self._folder, self._host, self._no_worker_timeout_s = folder, host, no_worker_timeout_s

    def run(self) -> Summary:
        """Runs until the study ends. Raises StudyFailed if it has no result, or Spark cannot start the
        workers."""
        spec, folder = self._spec, self._folder
        journal = Journal(folder / STREAM)
        past = list(journal.past_records)
        spec_json = json.loads(json.dumps(study_to_json(spec)))  # as it is stored in a journal
        if any(record["kind"] == "study" and _as_written_now(record["spec"]) != spec_json for record in past):
            raise SpecError(f"{folder} holds another study", hints=("choose another folder",))
        self._checkpoint_step = max(
            (int(record["step"]) for record in past if record["kind"] == "saved"), default=0
        )
        starts = sum(record["kind"] == "study" for record in past)
        start_record = {"spec": study_to_json(spec), "attempt": f"spark.{starts + 1}", "pid": os.getpid()}
        journal.write("study", **start_record)
        past.append({"kind": "study", **start_record})
        secret = secrets.token_bytes(32)
        searcher = build(spec, lambda text: load_attribute(text, Path.cwd()))
        mirrors = create_mirrors(spec, folder / "tensorboard", _log_message, study=str(folder))
        printer = _StudyPrinter(mirrors, spec.budget_unit)
        started_at = float(past[0].get("t", time.time()))
        driver = StudyDriver(
            spec,
            searcher,
            journal=journal,
            past_records=past,
            listener=printer,
            is_stopping=lambda: False,
            elapsed_s=lambda: max(0.0, time.time() - started_at),
        )
        trainer = open_mop_trainer(self._make_context(journal, past, secret, driver), scratch_dir(secret))
        setup = WorkerSetup(
            f"{self._host}:{trainer.port}",
            secret,
            spec,
            self._stored,
            self._trainable,
            self._no_worker_timeout_s,
        )
        stage = BarrierStage(self._spark, setup, workers=spec.mop.workers if spec.mop is not None else 1)
        completed = False
        try:
            completed = driver.run(
                SparkMopTrainer(
                    trainer, stage, self._spark, _log_message, no_worker_timeout_s=self._no_worker_timeout_s
                )
            )
        finally:
            trainer.close(completed=completed)
            stage.wait_for_exit(_WORKER_EXIT_TIMEOUT_S)
            printer.close()
            journal.close()
            shutil.rmtree(scratch_dir(secret), ignore_errors=True)
        return self.summary()

    def summary(self) -> Summary:
        """Returns the summary of the folder's journal."""
        return Summary.from_records(
            list(read_records((self._folder / STREAM).read_bytes())), self._folder / _STATES_DIR
        )

    def _make_context(
        self, journal: Journal, past_records: Sequence[Mapping[str, Any]], secret: bytes, driver: StudyDriver
    ) -> TrainerContext:
        states = self._folder / _STATES_DIR
        saved_files = {path.name: path for path in states.iterdir()} if states.is_dir() else {}
        lock = threading.Lock()

        def save(files: Mapping[str, Path], states_json: Any) -> None:
            with lock:
                _replace_files(states, files)
                self._checkpoint_step += 1
                journal.write("saved", step=self._checkpoint_step, states=states_json)

        return TrainerContext(
            spec=self._spec,
            journal=journal,
            past_records=past_records,
            log_message=_log_message,
            save_checkpoint=save,
            restored_checkpoint=RestoredCheckpoint(self._checkpoint_step, saved_files)
            if saved_files
            else None,
            dataset_dir=None,
            secret=secret,
            listen_address=(self._host, 0),
            is_stopping=lambda: False,
            best_trial=lambda: None if driver.best is None else driver.best.trial,
        )


def _as_written_now(spec_json: Mapping[str, Any]) -> Any:
    """Adds the fields that an earlier version did not have."""
    return json.loads(json.dumps(study_to_json(study_from_json(spec_json))))


class _StudyPrinter:
    """A listener of the driver: prints lines to stderr, and feeds the mirrors."""

    def __init__(self, mirrors: Mirrors, unit: BudgetUnit) -> None:
        self._mirrors, self._unit = mirrors, unit.singular
        self._best: float | None = None
        self._printed_at = time.monotonic()

    def trial_started(self, proposal: Proposal) -> None:
        self._mirrors.trial_started(proposal.trial, proposal.params)

    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None:
        self._mirrors.trial_reported(trial, step, metrics)

    def trial_ended(self, trial: TrialId, phase: TrialPhase, reason: str) -> None:
        self._mirrors.trial_ended(trial, failed=phase is TrialPhase.FAILED)
        if phase is TrialPhase.FAILED:
            _log_message(f"trial {trial} failed: {reason}")

    def study_stopped(self, reason: str) -> None:
        _log_message(f"the study ends: {reason}")

    def study_updated(self, state: StudyState) -> None:
        best = state.best
        if best is not None and best.value != self._best:
            self._best = best.value
            _log_message(f"best so far: {best.value:g}, trial {best.trial} after {self._unit} {best.step}")

    def close(self) -> None:
        self._mirrors.close()


def _replace_files(folder: Path, files: Mapping[str, Path]) -> None:
    """Replaces the files of `folder`: writes new ones first, then removes others, so that a crash loses no
    file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        if not (folder / name).exists():
            scratch = folder / f".{name}.{os.getpid()}"
            shutil.copyfile(path, scratch)
            scratch.rename(folder / name)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()


def _log_message(text: str) -> None:
    print(f"hopyard: {text}", file=sys.stderr, flush=True)

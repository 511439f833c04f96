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

from hopyard.config.studyjson import study_json
from hopyard.domain.ids import TrialId
from hopyard.domain.study import StudySpec
from hopyard.domain.trial import Proposal
from hopyard.errors import SpecError
from hopyard.on_spark.barrier import Post, Stage, scratch_of
from hopyard.on_spark.frames import Written
from hopyard.on_spark.summary import Summary
from hopyard.on_spark.watched import Watched
from hopyard.searchers.registry import build
from hopyard.studies.driver import Driver
from hopyard.studies.hopper.hopper import open_hopper
from hopyard.studies.journal import STREAM, Journal, read_records
from hopyard.studies.mirrors.mirror import Mirrors, mirrors_of
from hopyard.studies.standing import Phase, Standing
from hopyard.studies.trainable.load import load_attribute
from hopyard.studies.trainer import Ground, Saved

_END_S = 30.0  # for workers to leave
_STATES = "states"


class SparkStudy:
    """folder: on the driver's disk: journal, saved states, TensorBoard files.
    A study that was broken off goes on from there."""

    def __init__(
        self,
        spark: Any,
        spec: StudySpec,
        written: Written,
        *,
        trainable: bytes,
        folder: Path,
        host: str,
        patience_s: float,
    ) -> None:
        self._spark, self._spec, self._written, self._trainable = spark, spec, written, trainable
        self._folder, self._host, self._patience_s = folder, host, patience_s

    def run(self) -> Summary:
        """Until the study ends. Raises StudyFailed when nothing comes of it, or Spark cannot start the
        workers."""
        spec, folder = self._spec, self._folder
        journal = Journal(folder / STREAM)
        past = list(journal.past)
        said = json.loads(json.dumps(study_json(spec)))  # as it stands in a journal
        if any(record["kind"] == "study" and record["spec"] != said for record in past):
            raise SpecError(f"{folder} holds another study", hints=("name another folder",))
        self._steps = max((int(record["step"]) for record in past if record["kind"] == "saved"), default=0)
        starts = sum(record["kind"] == "study" for record in past)
        begun = {"spec": study_json(spec), "attempt": f"spark.{starts + 1}", "pid": os.getpid()}
        journal.write("study", **begun)
        past.append({"kind": "study", **begun})
        secret = secrets.token_bytes(32)
        searcher = build(spec, lambda text: load_attribute(text, Path.cwd()))
        audience = _Audience(mirrors_of(spec, folder / "tensorboard", _say, study=str(folder)))
        driver = Driver(spec, searcher, journal=journal, past=past, audience=audience, stopping=lambda: False)
        hopper = open_hopper(self._ground(journal, past, secret, driver), scratch_of(secret))
        post = Post(
            f"{self._host}:{hopper.port}", secret, spec, self._written, self._trainable, self._patience_s
        )
        stage = Stage(self._spark, post, workers=spec.mop.workers if spec.mop is not None else 1)
        ended = False
        try:
            ended = driver.run(Watched(hopper, stage, self._spark, _say, patience_s=self._patience_s))
        finally:
            hopper.close(over=ended)
            stage.end(_END_S)
            audience.close()
            journal.close()
            shutil.rmtree(scratch_of(secret), ignore_errors=True)
        return self.summary()

    def summary(self) -> Summary:
        """Of what stands in the folder."""
        return Summary.of(list(read_records((self._folder / STREAM).read_bytes())), self._folder / _STATES)

    def _ground(
        self, journal: Journal, past: Sequence[Mapping[str, Any]], secret: bytes, driver: Driver
    ) -> Ground:
        states = self._folder / _STATES
        found = {path.name: path for path in states.iterdir()} if states.is_dir() else {}
        lock = threading.Lock()

        def save(files: Mapping[str, Path], said: Any) -> None:
            with lock:
                _replace(states, files)
                self._steps += 1
                journal.write("saved", step=self._steps, states=said)

        return Ground(
            spec=self._spec,
            journal=journal,
            past=past,
            say=_say,
            save=save,
            saved=Saved(self._steps, found) if found else None,
            dataset=None,
            secret=secret,
            listen=(self._host, 0),
            stopping=lambda: False,
            best=lambda: None if driver.best is None else driver.best.trial,
        )


class _Audience:
    """Of the driver: a line on stderr for what ends, and mirrors."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._best: float | None = None
        self._said_at = time.monotonic()

    def began(self, proposal: Proposal) -> None:
        self._mirrors.began(proposal.trial, proposal.params)

    def reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None:
        self._mirrors.reported(trial, step, metrics)

    def ended(self, trial: TrialId, phase: Phase, why: str) -> None:
        self._mirrors.ended(trial, failed=phase is Phase.FAILED)
        if phase is Phase.FAILED:
            _say(f"trial {trial} failed: {why}")

    def stands(self, standing: Standing) -> None:
        best = standing.best
        if best is not None and best.value != self._best:
            self._best = best.value
            _say(f"best so far: {best.value:g}, trial {best.trial} after epoch {best.step}")

    def close(self) -> None:
        self._mirrors.close()


def _replace(folder: Path, files: Mapping[str, Path]) -> None:
    """`folder` with these files: new ones first, then the others go, so that a crash leaves at least what was
    there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        if not (folder / name).exists():
            scratch = folder / f".{name}.{os.getpid()}"
            shutil.copyfile(path, scratch)
            scratch.rename(folder / name)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()


def _say(text: str) -> None:
    print(f"hopyard: {text}", file=sys.stderr, flush=True)

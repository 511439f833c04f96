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

from hopyard.config.studyjson import study_json
from hopyard.domain.study import GOES_ON, Parallel
from hopyard.errors import Forbidden, HopyardError, StorageFull, StudyFailed, WorkersLost
from hopyard.sdk import session
from hopyard.sdk.api import log
from hopyard.sdk.speak import say
from hopyard.searchers.registry import build
from hopyard.studies.curves import Curves, points_of, points_shown
from hopyard.studies.driver import Driver
from hopyard.studies.journal import CONTINUED, STREAM, Journal, read_records
from hopyard.studies.mirrors.mirror import mirrors_of
from hopyard.studies.outlet import Outlet
from hopyard.studies.peers import Peers
from hopyard.studies.place import Place, find_place
from hopyard.studies.saving import find_saved, write_checkpoint
from hopyard.studies.server import StudyServer
from hopyard.studies.trainable.load import load_attribute
from hopyard.studies.trainer import Ground, Trainer

LEFT = 128 + signal.SIGTERM
_RESTARTS = 3  # for want of workers, one after another without a report
_DISK_RETRY_S = 1.0


def main() -> int:
    """Returns the exit code: 0 when the study has a best trial, 1 when nothing came of it, 143 when it was
    asked to go on in another attempt, 75 when it asks for that itself."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    study: _Study | None = None
    try:
        study = _Study(find_place(), stopping.is_set)
        return 0 if study.run() else LEFT
    except HopyardError as error:
        return _leave(error, study, stopping)


def _leave(error: HopyardError, study: _Study | None, stopping: threading.Event) -> int:
    try:
        again = (
            not stopping.is_set()
            and study is not None
            and isinstance(error, WorkersLost)
            and study.asks_for_another_attempt(error)
        )
    except StorageFull as full:  # it was asked to leave as it waited for space to write that down
        error, again = full, False
    if stopping.is_set():
        return LEFT
    if again:
        return GOES_ON
    told = "\n".join([f"error: {error.message}", *(f"hint: {hint}" for hint in error.hints)])
    print(told, file=sys.stderr, flush=True)  # its last line that is no hint becomes the run's exit reason
    return 1


class _Study:
    def __init__(self, place: Place, stopping: Callable[[], bool]) -> None:
        self._place, self._stopping = place, stopping
        self._server = StudyServer(place.folder, stopping=stopping, say=say)
        self._journal = Journal(place.streams / STREAM, wait=self._wait_for_disk)
        self._before = self._earlier()
        self._past: list[Mapping[str, Any]] = [*self._before, *self._journal.past]
        if place.spec.continues:
            self._take_over(place.spec.continues)
        self._session = session.current()
        self._steps = max(
            (int(record["step"]) for record in self._past if record.get("kind") == "saved"),
            default=place.restored_step or 0,
        )
        self._driver: Driver | None = None
        self._peers = Peers(place.gang, place.rank)

    def run(self) -> bool:
        """Whether the study has ended; else it goes on later."""
        spec, place = self._place.spec, self._place
        folder = Path.cwd()
        searcher = build(spec, lambda text: load_attribute(text, folder))
        begun = {"spec": study_json(spec), "attempt": place.attempt, "pid": os.getpid()}
        self._journal.write("study", **begun)
        self._past.append({"kind": "study", **begun})
        curves = self._curves()
        mirrors = mirrors_of(spec, folder / "tensorboard", say, study=place.run_name)
        outlet = Outlet(
            spec,
            curves,
            mirrors,
            summarise=self._session.summarise,
            progress=self._tell_progress,
            look=self._look_at_peers,
        )
        driver = self._driver = Driver(
            spec, searcher, journal=self._journal, past=self._past, audience=outlet, stopping=self._stopping
        )
        trainer = self._trainer()
        ended = False
        try:
            ended = driver.run(trainer)
        finally:
            trainer.close(over=ended)
            outlet.close(driver.standing, over=ended)
            mirrors.close()
            self._server.close()
        return ended

    def asks_for_another_attempt(self, lost: WorkersLost) -> bool:
        """Whether it does: not over and over without any news of a trial."""
        before = 0
        for record in reversed([*self._before, *self._journal.read()]):
            if record.get("kind") in ("told", CONTINUED):
                break
            before += record.get("kind") == "restart"
        if before >= _RESTARTS:
            say(f"{before} attempts before this one ended so, and no trial reported anything in between")
            return False
        self._journal.write("restart", reason=lost.message)
        # last: the attempt's exit reason
        print(f"{lost.message}; the study goes on with new ones", file=sys.stderr, flush=True)
        return True

    def _earlier(self) -> list[dict[str, Any]]:
        """What earlier attempts wrote. All of it has been shipped, or is lost for good."""
        number = int(self._place.attempt.rpartition(".")[2])
        return self._records_of(self._place.run, before=number) if number > 1 else []

    def _take_over(self, study: str) -> None:
        """Copy the journal of the study that this one continues, which may be deleted then; or the rest of
        it, where a driver was killed meanwhile: nothing else is written before."""
        if _has_taken_over(self._past, study):
            return
        name, records = self._left_by(study)
        for record in records[len(self._past) :]:
            self._journal.copy(record)
            self._past.append(record)
        mark = {"run": study, "name": name}
        self._journal.write(CONTINUED, **mark)
        self._past.append({"kind": CONTINUED, **mark})

    def _left_by(self, study: str) -> tuple[str, list[dict[str, Any]]]:
        """The name and the journal of a study that has ended; the journal of the one that it was to continue,
        where it ended before it had all of that. Raises StudyFailed where one was deleted or may not be
        read."""
        try:
            found = self._server.find(f"/runs/{study}")
        except Forbidden as refused:
            raise StudyFailed(
                f"the study that this one continues may not be read: {refused.message}", hints=refused.hints
            ) from refused
        if found is None:
            raise StudyFailed(
                "the study that this one continues was deleted before this one had begun",
                hints=("`hop search FILE.yaml` searches anew",),
            )
        records, before = self._records_of(study), found["spec"]["study"].get("continues")
        if before and not _has_taken_over(records, before):
            records = self._left_by(before)[1]
        return str(found["name"]), records

    def _records_of(self, run: str, **only: int) -> list[dict[str, Any]]:
        data = b""
        while part := self._server.read(f"/runs/{run}/journal", offset=len(data), **only):
            data += part
        return list(read_records(data))

    def _curves(self) -> Curves:
        spec, place = self._place.spec, self._place
        known = points_of(place.streams / "metrics")
        if self._past:
            known |= points_shown(dict(self._server.find_all(f"/runs/{place.run}/metrics", "series") or ()))
        curves = Curves(spec.metric, spec.goal, _log, every=spec.parallel is Parallel.MOP, known=known)
        curves.replay(self._past)
        return curves

    def _trainer(self) -> Trainer:
        place = self._place
        self._note_who_is_gone()
        ground = Ground(
            spec=place.spec,
            journal=self._journal,
            past=self._past,
            say=say,
            save=self._save,
            saved=find_saved(place.folder, place.restored, place.restored_step),
            dataset=place.dataset,
            secret=place.secret,
            listen=place.meet,
            stopping=self._stopping,
            best=lambda: (
                None if self._driver is None or self._driver.best is None else self._driver.best.trial
            ),
        )
        if place.spec.parallel is Parallel.TRIALS:
            from hopyard.studies.trials.trainer import TrialRuns

            return TrialRuns(ground, self._server, place.run)
        from hopyard.studies.hopper.hopper import open_hopper

        if place.dataset is not None and place.spec.mop is not None:
            from hopyard.datasets.partitions.split import check

            # what is wrong with the data is known before any worker reads it
            check(place.dataset, place.spec.mop.partitions, dataset=place.spec.mop.dataset)
        return open_hopper(ground, place.gang / "states")

    def _save(self, files: Mapping[str, Path], states: Any) -> None:
        """In whatever thread the trainer likes, one at a time."""
        self._steps += 1
        best = self._driver.best if self._driver is not None else None
        metrics = {} if best is None else {self._place.spec.metric: best.value}
        write_checkpoint(self._place.folder, self._session.events, self._steps, files, metrics, states)
        self._journal.write("saved", step=self._steps, states=states)

    def _note_who_is_gone(self) -> None:
        """Workers that ended while no driver was there to see it: they are not waited for."""
        events = {
            record["worker"]: record["event"] for record in self._past if record.get("kind") == "worker"
        }
        for worker, reason in self._look_at_peers():
            if events.get(worker) == "joined":
                self._journal.write("worker", worker=worker, event="lost", detail=reason)
                self._past.append({"kind": "worker", "worker": worker, "event": "lost", "detail": reason})

    def _look_at_peers(self) -> list[tuple[str, str]]:
        found = self._peers.gone()
        for worker, reason in found:
            self._journal.write("worker", worker=worker, event="ended", detail=reason)
            say(f"{worker} is gone: {reason}")
        if self._place.spec.mop is not None:
            self._peers.check_some_left(self._place.spec.mop.workers)
        return found

    def _tell_progress(self, done: int, total: int | None) -> None:
        self._session.events.tell("progress", done=done, total=total, unit="trial")

    def _wait_for_disk(self, failed: OSError) -> bool:
        say(f"the study waits: its journal cannot be written ({failed.strerror})", once="journal")
        time.sleep(_DISK_RETRY_S)
        return not self._stopping()


def _has_taken_over(records: Iterable[Mapping[str, Any]], study: str) -> bool:
    return any(record.get("kind") == CONTINUED and record["run"] == study for record in records)


def _log(values: Mapping[str, float], /, *, step: int) -> None:
    log(values, step=step)


if __name__ == "__main__":
    sys.exit(main())

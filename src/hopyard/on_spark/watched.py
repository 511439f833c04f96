"""The hopper, with a stage of Spark's below it: workers that are lost begin again, those that cannot start
end the study."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.errors import StudyFailed
from hopyard.on_spark.barrier import Stage
from hopyard.on_spark.slots import settings_of_slots, slots_of
from hopyard.on_spark.stores.raised import raised_in_executor
from hopyard.studies.hopper.hopper import Hopper
from hopyard.studies.trainer import News, Work

_LOOK_S = 1.0
_SAY_S = 10.0  # without any task
_RESTARTS = 3
_GOES_ON = "with the same folder and data the study goes on where it was"


class Watched:
    """A trainer. Spark itself starts no stage of results again that lost an executor; here it is, as soon as
    there are slots. patience_s: for how long there may be no worker before the study ends."""

    def __init__(
        self, hopper: Hopper, stage: Stage, spark: Any, say: Callable[[str], None], *, patience_s: float
    ) -> None:
        self._hopper, self._stage, self._spark, self._say, self._patience_s = (
            hopper,
            stage,
            spark,
            say,
            patience_s,
        )
        self._looked_at = self._ran_at = time.monotonic()
        self._restarts = 0  # since the last news
        self._said = False

    def room(self) -> int:
        return self._hopper.room()

    def start(self, work: Work) -> None:
        self._hopper.start(work)

    def end(self, trial: TrialId, *, keep: bool) -> None:
        self._hopper.end(trial, keep=keep)

    def close(self, *, over: bool) -> None:
        self._hopper.close(over=over)

    def wait(self, timeout_s: float) -> list[News]:
        news = self._hopper.wait(min(timeout_s, _LOOK_S))
        if news:
            self._restarts = 0
            return news
        if self._stage.failed is not None:
            self._judge(self._stage.failed)
        if not self._stage.is_running and slots_of(self._spark) >= self._stage.workers:
            self._stage.start()
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._look()
        return news

    def _judge(self, failed: BaseException) -> None:
        """Whether it is worth to begin again."""
        own = raised_in_executor(failed)
        if own is not None:
            raise own
        if self._restarts == _RESTARTS:
            raise StudyFailed(
                f"Spark ended the study's workers {_RESTARTS + 1} times without news of a trial: "
                f"{_told(failed)}",
                hints=(_GOES_ON,),
            )
        self._restarts += 1
        self._stage.failed = None
        self._say(f"Spark ended the workers: {_told(failed)}; they begin again")

    def _look(self) -> None:
        """A barrier stage that finds too few free slots waits without a word."""
        now = self._looked_at = time.monotonic()
        if self._stage.active:
            self._ran_at, self._said = now, False
            return
        idle_s = now - self._ran_at
        if idle_s < _SAY_S:
            return
        slots, needed = slots_of(self._spark), self._stage.workers
        about = (
            f"they need {needed} free slots at once, and "
            f"{'some are taken by something else' if slots >= needed else f'Spark has {slots}'}"
        )
        if idle_s >= self._patience_s:
            raise StudyFailed(
                f"no worker has run for {idle_s:.0f} s: {about}",
                hints=(_GOES_ON, *settings_of_slots(self._spark)),
            )
        if not self._said:
            self._said = True
            self._say(f"no worker runs: {about}")


def _told(error: BaseException | None) -> str:
    """What Spark says, without the stack: of an executor or of Python in one, where it was that."""
    if error is None:
        return "they left"
    java = getattr(error, "java_exception", None)
    said = str(java.getMessage()) if java is not None else str(error)
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("\tat")]
    named = [line for line in lines if "Error:" in line or line.startswith("ExecutorLostFailure")]
    return (named or lines or [type(error).__name__])[-1 if named else 0]

"""The hopper, as long as there is a stage: workers that never start, or all end, end the study with what Spark said."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.errors import StudyFailed
from hopyard.on_spark.barrier import Stage
from hopyard.on_spark.slots import settings_of_slots, slots_of
from hopyard.studies.hopper.hopper import Hopper
from hopyard.studies.trainer import News, Work

_LOOK_S = 1.0
_SAY_S = 10.0  # without any task


class Watched:
    """A trainer. patience_s: how long Spark may have too few slots before the study ends."""

    def __init__(self, hopper: Hopper, stage: Stage, spark: Any, say: Callable[[str], None], *, patience_s: float) -> None:
        self._hopper, self._stage, self._spark, self._say, self._patience_s = hopper, stage, spark, say, patience_s
        self._looked_at = self._ran_at = time.monotonic()
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
        news = self._hopper.wait(timeout_s)
        if not news and not self._stage.is_running:
            raise StudyFailed(
                f"Spark ended the study's workers: {_first_line(self._stage.error)}",
                hints=("the same folder and data go on where the study was", "a barrier stage needs as many free slots as workers at once"),
            )
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._look()
        return news

    def _look(self) -> None:
        """A barrier stage that finds too few free slots waits without a word: before its first attempt, and after an executor was
        lost."""
        now = self._looked_at = time.monotonic()
        if self._stage.tasks:
            self._ran_at, self._said = now, False
            return
        if now - self._ran_at < _SAY_S:
            return
        slots, needed = slots_of(self._spark), self._stage.workers
        if slots < needed and now - self._ran_at >= self._patience_s:
            said = f"the workers need {needed} slots at once, and for {self._patience_s:.0f} s Spark had fewer; now it has {slots}"
            raise StudyFailed(said, hints=("the same folder and data go on where the study was", *settings_of_slots(self._spark)))
        if not self._said:
            self._said = True
            busy = "some are taken by something else" if slots >= needed else f"Spark has {slots}"
            self._say(f"no worker runs: they need {needed} free slots at once, and {busy}")


def _first_line(error: BaseException | None) -> str:
    if error is None:
        return "they left"
    lines = [line for line in str(error).splitlines() if line.strip()]
    named = [line.strip() for line in lines if "Error:" in line and not line.startswith("\tat")]
    return (named or lines or [type(error).__name__])[-1 if named else 0]

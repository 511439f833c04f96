"""Model hopper parallelism on a Spark stage: lost workers are restarted; workers that cannot start fail the
study."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.errors import StudyFailed
from hopyard.mop_runtime.driver.mop_trainer import MopTrainer
from hopyard.spark.barrier import BarrierStage
from hopyard.spark.stores.executor_errors import executor_error
from hopyard.spark.task_slots import count_slots, slot_settings
from hopyard.studies.trainer import TrainerEvent, TrialWork

_POLL_INTERVAL_S = 1.0
_IDLE_WARNING_S = 10.0  # without a running task
_MAX_RESTARTS = 3
_RESUME_HINT = "call `fit` again with the same folder and data to resume the study"


class SparkMopTrainer:
    """A trainer on Spark.

    Spark does not restart a result stage that lost an executor; this class does, as soon as there are slots.
    no_worker_timeout_s: how long there may be no worker before the study ends.
    """

    def __init__(
        self,
        trainer: MopTrainer,
        stage: BarrierStage,
        spark: Any,
        log_message: Callable[[str], None],
        *,
        no_worker_timeout_s: float,
    ) -> None:
        self._trainer, self._stage, self._spark, self._log_message, self._no_worker_timeout_s = (
            trainer,
            stage,
            spark,
            log_message,
            no_worker_timeout_s,
        )
        self._polled_at = self._active_at = time.monotonic()
        self._restarts = 0  # since the last event of a trial
        self._has_warned = False

    def free_capacity(self) -> int:
        return self._trainer.free_capacity()

    def start(self, work: TrialWork) -> None:
        self._trainer.start(work)

    def end(self, trial: TrialId, *, keep_state: bool) -> None:
        self._trainer.end(trial, keep_state=keep_state)

    def close(self, *, completed: bool) -> None:
        self._trainer.close(completed=completed)

    def wait(self, timeout_s: float) -> list[TrainerEvent]:
        events = self._trainer.wait(min(timeout_s, _POLL_INTERVAL_S))
        if events:
            self._restarts = 0
            return events
        if self._stage.error is not None:
            self._check_failure(self._stage.error)
        if not self._stage.is_running and count_slots(self._spark) >= self._stage.workers:
            self._stage.start()
        if time.monotonic() - self._polled_at >= _POLL_INTERVAL_S:
            self._check_slots()
        return events

    def _check_failure(self, error: BaseException) -> None:
        """Decides whether to restart the workers."""
        executor_failure = executor_error(error)
        if executor_failure is not None:
            raise executor_failure
        if self._restarts == _MAX_RESTARTS:
            raise StudyFailed(
                f"Spark ended the study's workers {_MAX_RESTARTS + 1} times without progress of a trial: "
                f"{_format_error(error)}",
                hints=(_RESUME_HINT,),
            )
        self._restarts += 1
        self._stage.error = None
        self._log_message(f"Spark stopped the workers: {_format_error(error)}; they start again")

    def _check_slots(self) -> None:
        """Reports missing slots, because a barrier stage with too few free slots waits silently."""
        now = self._polled_at = time.monotonic()
        if self._stage.active_workers:
            self._active_at, self._has_warned = now, False
            return
        idle_s = now - self._active_at
        if idle_s < _IDLE_WARNING_S:
            return
        slots, needed = count_slots(self._spark), self._stage.workers
        detail = (
            f"they need {needed} free slots at once, and "
            f"{'other jobs use some of them' if slots >= needed else f'Spark has {slots}'}"
        )
        if idle_s >= self._no_worker_timeout_s:
            raise StudyFailed(
                f"no worker has run for {idle_s:.0f} s: {detail}",
                hints=(_RESUME_HINT, *slot_settings(self._spark)),
            )
        if not self._has_warned:
            self._has_warned = True
            self._log_message(f"no worker runs: {detail}")


def _format_error(error: BaseException | None) -> str:
    """Returns the error of Spark without the stack: that of the executor, or of Python in it, if there is
    one."""
    if error is None:
        return "they exited"
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat")]
    error_lines = [line for line in lines if "Error:" in line or line.startswith("ExecutorLostFailure")]
    return (error_lines or lines or [type(error).__name__])[-1 if error_lines else 0]

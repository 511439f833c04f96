"""Stops the trials of an ended study, no matter how the study ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from hopyard.controller.background import run_logging_errors
from hopyard.controller.batch_reads import read_runs
from hopyard.domain.ids import RunId
from hopyard.domain.run import RunPhase
from hopyard.interfaces.run_store import RunFilter, RunStore

LIVE_PHASES = frozenset(phase for phase in RunPhase if not phase.is_final)
_MAX_LISTED_TRIALS = 10_000  # far more than a study may have live


class TrialCleanup:
    """stop: stops a run."""

    def __init__(self, runs: RunStore, stop: Callable[[RunId], Awaitable[None]]) -> None:
        self._runs, self._stop = runs, stop

    async def stop_trials_of(self, runs: Sequence[RunId]) -> None:
        """Stops the trials of each of these runs that is an ended study. runs: runs of which an attempt
        ended."""
        for study in (await read_runs(self._runs, runs, studies_only=True)).values():
            for trial in (
                await self._runs.list(
                    RunFilter(parent=study.id, phases=LIVE_PHASES, limit=_MAX_LISTED_TRIALS, brief=True)
                )
                if study.phase.is_final
                else ()
            ):
                await run_logging_errors(self._stop(trial.id))

    async def stop_orphans(self) -> None:
        """Stops trials of ended studies that an earlier server did not stop."""
        for trial in await self._runs.list_orphans():
            await run_logging_errors(self._stop(trial))

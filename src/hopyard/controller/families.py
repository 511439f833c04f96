"""Trials end with their study, however that ended, and whatever was killed meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from hopyard.controller.effects import guard_effect
from hopyard.controller.reading import read_runs
from hopyard.domain.ids import RunId
from hopyard.domain.run import RunPhase
from hopyard.interfaces.run_store import RunFilter, RunStore

LIVE = frozenset(phase for phase in RunPhase if not phase.final)
_MOST = 10_000  # far more than a study may have alive


class Families:
    """stop: ends a run."""

    def __init__(self, runs: RunStore, stop: Callable[[RunId], Awaitable[None]]) -> None:
        self._runs, self._stop = runs, stop

    async def ended(self, runs: Sequence[RunId]) -> None:
        """Attempts of these runs ended: of those that are over and were studies, the trials are ended."""
        for study in (await read_runs(self._runs, runs, studies=True)).values():
            for trial in (
                await self._runs.list(RunFilter(parent=study.id, phases=LIVE, limit=_MOST, brief=True))
                if study.phase.final
                else ()
            ):
                await guard_effect(self._stop(trial.id))

    async def end_orphans(self) -> None:
        """What an earlier server did not come to."""
        for trial in await self._runs.list_orphans():
            await guard_effect(self._stop(trial))

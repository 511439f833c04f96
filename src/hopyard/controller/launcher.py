"""Starting on the engine what was placed, or saying that it could not be started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from hopyard.controller.effects import guard_effect, log
from hopyard.controller.endings import Endings
from hopyard.controller.launches import Composer
from hopyard.controller.reading import read_runs
from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.run import Run, RunPhase
from hopyard.errors import HopyardError
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, Recorded
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.run_store import RunStore

LAUNCHES_AT_ONCE = 32

Reading = asyncio.Task[dict[RunId, Run]]


class Launcher:
    """react: awaited with what a failed launch changed."""

    def __init__(
        self,
        *,
        cluster: ClusterStore,
        runs: RunStore,
        engine: Engine,
        clock: Clock,
        composer: Composer,
        endings: Endings,
        react: Callable[[Recorded], Awaitable[None]],
    ) -> None:
        self._cluster, self._runs, self._engine, self._clock = cluster, runs, engine, clock
        self._composer, self._endings, self._react = composer, endings, react
        self._slots = asyncio.Semaphore(LAUNCHES_AT_ONCE)
        self._under_way: dict[AttemptId, asyncio.Task[None]] = {}
        self._readings: set[Reading] = set()

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._under_way

    def __len__(self) -> int:
        return len(self._under_way)

    def under_way(self) -> set[AttemptId]:
        return set(self._under_way)

    def read_ahead(self, places: Sequence[Placement]) -> Reading | None:
        """Begin to read what these run, while it is decided whether they start."""
        return self._begin_reading([RunId(placement.gang.id) for placement in places]) if places else None

    def launch(self, started: Sequence[tuple[AttemptId, Placement]], reading: Reading | None = None) -> None:
        """They are under way from now on. What they run is read in one go, unless `reading` did; whoever is stopped after that is
        asked to end once it was started."""
        fresh = [(attempt, placement) for attempt, placement in started if attempt not in self._under_way]
        if not fresh:
            return
        if reading is None:
            reading = self._begin_reading([split_attempt(attempt)[0] for attempt, _ in fresh])
        for attempt, placement in fresh:
            self._under_way[attempt] = asyncio.get_running_loop().create_task(self._launch(attempt, placement, reading))

    def _begin_reading(self, ids: Sequence[RunId]) -> Reading:
        self._readings.add(reading := asyncio.get_running_loop().create_task(read_runs(self._runs, ids)))
        reading.add_done_callback(self._readings.discard)
        return reading

    async def _run_of(self, attempt: AttemptId, reading: Reading) -> Run | None:
        """What the attempt runs; None where it is over. Who has never been started goes on from nothing, so it need not be read
        again after it was placed."""
        run_id, number = split_attempt(attempt)
        run = (await asyncio.shield(reading)).get(run_id)
        if run is not None and run.phase is RunPhase.QUEUED and number == 1 and run.spec.resume is None:
            return run
        if run is None or run.attempt is None or run.attempt.id != attempt:
            run = (await read_runs(self._runs, [run_id])).get(run_id)
        if run is None or run.attempt is None or run.attempt.id != attempt or not AttemptPhase(run.attempt.phase).live:
            return None
        return run

    async def _launch(self, attempt: AttemptId, placement: Placement, reading: Reading) -> None:
        try:
            run = await self._run_of(attempt, reading)
            if run is None:
                return
            if run.stop_requested:
                await self.give_up(attempt, "stopped before it was started")
                return
            async with self._slots:
                await self._engine.launch(await self._composer.compose(run, attempt, placement))
        except HopyardError as error:
            log.warning("attempt %s was not launched: %s", attempt, error)
            await self.give_up(attempt, error.message)
        except Exception as error:
            log.exception("attempt %s was not launched", attempt)
            await self.give_up(attempt, f"the engine failed: {type(error).__name__}: {error}")
        finally:
            self._under_way.pop(attempt, None)
        self._endings.ask_anew(attempt)

    async def give_up(self, attempt: AttemptId, reason: str) -> None:
        """It is not there and will not be: end whatever there may be of it, and let the store decide what follows."""
        await guard_effect(self._engine.stop(attempt, grace=timedelta(0)))
        await self._react(await self._cluster.fail_launch(attempt, reason, now=self._clock.now()))
        await guard_effect(self._engine.forget(attempt))

    async def cancel(self) -> None:
        pending = [*self._under_way.values(), *self._readings]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)

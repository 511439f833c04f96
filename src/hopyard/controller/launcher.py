"""Starting on the engine what was placed, or saying that it could not be started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta

from hopyard.controller.effects import guard_effect, log
from hopyard.controller.endings import Endings
from hopyard.controller.launches import Composer
from hopyard.controller.reading import read_runs
from hopyard.domain.attempt import AttemptPhase, ExitKind
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.run import Run, RunPhase, RunSpec
from hopyard.errors import HopyardError, UsageError
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, Recorded
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.run_store import RunStore

LAUNCHES_AT_ONCE = 32
MOST_REMEMBERED_BYTES = 96 * 1024 * 1024  # of them all, roughly: a single spec may have megabytes
# runs that wait, of 2 to 12 KB (without parameters and packages, and with 50 of each); others are read when
# they start
MOST_REMEMBERED = 8192

Reading = asyncio.Task[dict[RunId, Run]]


class Launcher:
    """react: awaited with what a failed launch changed.
    look: looks at the engine, which may be out of service now."""

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
        look: Callable[[], Awaitable[object]],
    ) -> None:
        self._cluster, self._runs, self._engine, self._clock = cluster, runs, engine, clock
        self._composer, self._endings, self._react, self._look = composer, endings, react, look
        self._slots = asyncio.Semaphore(LAUNCHES_AT_ONCE)
        self._under_way: dict[AttemptId, asyncio.Task[None]] = {}
        self._readings: set[Reading] = set()
        self._remembered: dict[RunId, Run] = {}  # that wait for their first attempt
        self._remembered_bytes = 0

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._under_way

    def __len__(self) -> int:
        return len(self._under_way)

    def under_way(self) -> set[AttemptId]:
        return set(self._under_way)

    def remember(self, runs: Iterable[Run]) -> None:
        """They were submitted just now. What a run is seldom changes before it starts (see `_recall`), so it
        need not be read for that. Of very many those stay that came first: they start first."""
        for run in runs:
            if len(self._remembered) >= MOST_REMEMBERED:
                return
            if run.phase is RunPhase.QUEUED and run.attempt is None and run.spec.resume is None:
                weight = _weight(run.spec)
                if (
                    self._remembered_bytes + weight <= MOST_REMEMBERED_BYTES
                    and run.id not in self._remembered
                ):
                    self._remembered[run.id] = run
                    self._remembered_bytes += weight

    def forget(self, runs: Iterable[RunId]) -> None:
        """They are over, or were changed."""
        for run in runs:
            self._take(run)

    def _take(self, run_id: RunId) -> Run | None:
        """A run that is remembered, which it is no more."""
        run = self._remembered.pop(run_id, None)
        if run is not None:
            self._remembered_bytes -= _weight(run.spec)
        return run

    def read_ahead(self, places: Sequence[Placement]) -> Reading | None:
        """Begin to read what these run, while it is decided whether they start; None where all of them are
        remembered."""
        unknown = [run for placement in places if (run := RunId(placement.gang.id)) not in self._remembered]
        return self._begin_reading(unknown) if unknown else None

    def launch(self, started: Sequence[tuple[AttemptId, Placement]], reading: Reading | None = None) -> None:
        """They are under way from now on. What they run is read in one go, unless it is remembered or
        `reading` did; whoever is stopped after that is asked to end once it was started."""
        fresh = [(attempt, placement) for attempt, placement in started if attempt not in self._under_way]
        known = {attempt: self._recall(attempt, placement) for attempt, placement in fresh}
        unknown = [split_attempt(attempt)[0] for attempt, run in known.items() if run is None]
        if reading is None and unknown:
            reading = self._begin_reading(unknown)
        for attempt, placement in fresh:
            launch = self._launch(attempt, placement, known[attempt], reading)
            self._under_way[attempt] = asyncio.get_running_loop().create_task(launch)

    def _recall(self, attempt: AttemptId, placement: Placement) -> Run | None:
        """What it runs, where that is its run's first attempt, was submitted here, and asks for what was
        placed: another server may have changed it since."""
        run_id, number = split_attempt(attempt)
        run = self._take(run_id)
        gang = placement.gang
        if run is None or number != 1 or run.spec.time_limit_s != gang.time_limit_s:
            return None
        return (
            run
            if [role.resources for role in run.spec.roles] == [role.resources for role in gang.roles]
            else None
        )

    def _begin_reading(self, ids: Sequence[RunId]) -> Reading:
        self._readings.add(reading := asyncio.get_running_loop().create_task(read_runs(self._runs, ids)))
        reading.add_done_callback(self._readings.discard)
        return reading

    async def _run_of(self, attempt: AttemptId, reading: Reading) -> Run | None:
        """What the attempt runs; None where it is over.
        Who has never been started goes on from nothing, so it need not be read again after it was placed."""
        run_id, number = split_attempt(attempt)
        run = (await asyncio.shield(reading)).get(run_id)
        if run is not None and run.phase is RunPhase.QUEUED and number == 1 and run.spec.resume is None:
            return run
        if run is None or run.attempt is None or run.attempt.id != attempt:
            run = (await read_runs(self._runs, [run_id])).get(run_id)
        if (
            run is None
            or run.attempt is None
            or run.attempt.id != attempt
            or not AttemptPhase(run.attempt.phase).live
        ):
            return None
        return run

    async def _launch(
        self, attempt: AttemptId, placement: Placement, run: Run | None, reading: Reading | None
    ) -> None:
        """reading: of what it runs, where that is not known."""
        try:
            if run is None and reading is not None:
                run = await self._run_of(attempt, reading)
            if run is None:
                return
            if run.stop_requested:
                await self.give_up(attempt, "stopped before it was started")
                return
            async with self._slots:
                await self._engine.launch(await self._composer.compose(run, attempt, placement))
        except UsageError as error:
            await self.give_up(attempt, error.message, ExitKind.PREPARE_FAILED)
        except (HopyardError, OSError) as error:
            log.warning("attempt %s was not launched: %s", attempt, error)
            # first: what would start there next is not to be tried where nothing can start
            await self._look()
            await self.give_up(attempt, str(error), ExitKind.NODE_FAULT)
        except Exception as error:
            log.exception("attempt %s was not launched", attempt)
            await self.give_up(attempt, f"the engine failed: {type(error).__name__}: {error}")
        finally:
            self._under_way.pop(attempt, None)
        self._endings.ask_anew(attempt)

    async def give_up(self, attempt: AttemptId, reason: str, kind: ExitKind = ExitKind.LOST) -> None:
        """It is not there and will not be: end whatever there may be of it, and let the store decide what
        follows."""
        await guard_effect(self._engine.stop(attempt, grace=timedelta(0)))
        await self._react(await self._cluster.fail_launch(attempt, reason, now=self._clock.now(), kind=kind))
        await guard_effect(self._engine.forget(attempt))

    async def cancel(self) -> None:
        pending = [*self._under_way.values(), *self._readings]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)


def _weight(spec: RunSpec) -> int:
    """About how many bytes of memory a run with this spec takes."""
    values = (
        *spec.env.values(),
        *spec.params.values(),
        *spec.tags.values(),
        *(word for role in spec.roles for word in role.command),
    )
    letters = sum(len(value) for value in values if isinstance(value, str))
    return (
        2000
        + letters
        + 60 * len(values)
        + 120 * len(spec.environment.packages)
        + (0 if spec.study is None else 64 * 1024)
    )

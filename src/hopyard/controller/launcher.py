"""Launches placed attempts on the engine, or records that the launch failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from hopyard.controller.background import log, run_logging_errors
from hopyard.controller.batch_reads import read_runs
from hopyard.controller.launch_builder import LaunchBuilder
from hopyard.controller.stop_requests import StopRequests
from hopyard.domain.attempt import AttemptPhase, ExitKind
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import Run, RunPhase, RunSpec
from hopyard.errors import HopyardError, UsageError
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, RecordResult
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.run_store import RunStore

MAX_CONCURRENT_LAUNCHES = 32
MAX_CACHED_RUN_BYTES = 96 * 1024 * 1024  # approximately, of all cached runs: a single spec may have megabytes
# waiting runs of 2 to 12 KB each (without parameters and packages, and with 50 of each); other runs are read
# when they start
MAX_CACHED_RUNS = 8192

RunReadTask = asyncio.Task[dict[RunId, Run]]


class GangLauncher:
    """Launches attempts concurrently. on_recorded: awaited with the changes of a failed launch. observe_now:
    observes the engine, which may be unhealthy after a failure."""

    def __init__(
        self,
        *,
        cluster: ClusterStore,
        runs: RunStore,
        engine: Engine,
        clock: Clock,
        launch_builder: LaunchBuilder,
        stop_requests: StopRequests,
        on_recorded: Callable[[RecordResult], Awaitable[None]],
        observe_now: Callable[[], Awaitable[object]],
    ) -> None:
        self._cluster, self._runs, self._engine, self._clock = cluster, runs, engine, clock
        self._launch_builder, self._stop_requests, self._on_recorded, self._observe_now = (
            launch_builder,
            stop_requests,
            on_recorded,
            observe_now,
        )
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_LAUNCHES)
        self._launching: dict[AttemptId, asyncio.Task[None]] = {}
        self._read_tasks: set[RunReadTask] = set()
        self._run_cache: dict[RunId, Run] = {}  # runs that wait for their first attempt
        self._run_cache_bytes = 0

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._launching

    def __len__(self) -> int:
        return len(self._launching)

    def launching_attempts(self) -> set[AttemptId]:
        return set(self._launching)

    def cache_runs(self, runs: Iterable[Run]) -> None:
        """Caches runs that were just submitted, so that they need not be read at their start. A run seldom
        changes before it starts (see `_cached_run_of`). When the cache is full, earlier runs stay, since they
        start first."""
        for run in runs:
            if len(self._run_cache) >= MAX_CACHED_RUNS:
                return
            if run.phase is RunPhase.QUEUED and run.attempt is None and run.spec.resume is None:
                size = _estimated_bytes(run.spec)
                if self._run_cache_bytes + size <= MAX_CACHED_RUN_BYTES and run.id not in self._run_cache:
                    self._run_cache[run.id] = run
                    self._run_cache_bytes += size

    def drop_cached_runs(self, runs: Iterable[RunId]) -> None:
        """Drops runs that ended or changed."""
        for run in runs:
            self._pop_cached_run(run)

    def _pop_cached_run(self, run_id: RunId) -> Run | None:
        """Removes a run from the cache and returns it; None if it is not cached."""
        run = self._run_cache.pop(run_id, None)
        if run is not None:
            self._run_cache_bytes -= _estimated_bytes(run.spec)
        return run

    def prefetch_runs(self, placements: Sequence[Placement]) -> RunReadTask | None:
        """Starts to read the runs of these placements while the plan is committed. Returns None when all of
        them are cached."""
        uncached = [
            run for placement in placements if (run := RunId(placement.gang.id)) not in self._run_cache
        ]
        return self._start_read(uncached) if uncached else None

    def launch(
        self, started: Sequence[tuple[AttemptId, Placement]], read_task: RunReadTask | None = None
    ) -> None:
        """Launches these attempts in the background. Runs that are neither cached nor in `read_task` are read
        with one query. An attempt that is stopped meanwhile is asked to stop after its launch."""
        new = [(attempt, placement) for attempt, placement in started if attempt not in self._launching]
        cached_runs = {attempt: self._cached_run_of(attempt, placement) for attempt, placement in new}
        uncached = [split_attempt(attempt)[0] for attempt, run in cached_runs.items() if run is None]
        if read_task is None and uncached:
            read_task = self._start_read(uncached)
        for attempt, placement in new:
            launch = self._launch(attempt, placement, cached_runs[attempt], read_task)
            self._launching[attempt] = asyncio.get_running_loop().create_task(launch)

    def _cached_run_of(self, attempt: AttemptId, placement: Placement) -> Run | None:
        """Returns the cached run of a run's first attempt, if it still requests the placed resources; else
        None. Another server may have changed the run."""
        run_id, number = split_attempt(attempt)
        run = self._pop_cached_run(run_id)
        gang = placement.gang
        if run is None or number != 1 or run.spec.time_limit_s != gang.time_limit_s:
            return None
        return (
            run
            if [role.resources for role in run.spec.roles] == [role.resources for role in gang.roles]
            else None
        )

    def _start_read(self, ids: Sequence[RunId]) -> RunReadTask:
        self._read_tasks.add(task := asyncio.get_running_loop().create_task(read_runs(self._runs, ids)))
        task.add_done_callback(self._read_tasks.discard)
        return task

    async def _read_run_of(self, attempt: AttemptId, read_task: RunReadTask) -> Run | None:
        """Returns the run of the attempt; None if the attempt has ended. A run that never started has no
        checkpoint, so it need not be read again after its placement."""
        run_id, number = split_attempt(attempt)
        run = (await asyncio.shield(read_task)).get(run_id)
        if run is not None and run.phase is RunPhase.QUEUED and number == 1 and run.spec.resume is None:
            return run
        if run is None or run.attempt is None or run.attempt.id != attempt:
            run = (await read_runs(self._runs, [run_id])).get(run_id)
        if (
            run is None
            or run.attempt is None
            or run.attempt.id != attempt
            or not AttemptPhase(run.attempt.phase).is_live
        ):
            return None
        return run

    async def _launch(
        self, attempt: AttemptId, placement: Placement, run: Run | None, read_task: RunReadTask | None
    ) -> None:
        """read_task: reads the run when `run` is None."""
        try:
            if run is None and read_task is not None:
                run = await self._read_run_of(attempt, read_task)
            if run is None:
                return
            if run.stop_requested:
                await self.fail_attempt(attempt, "stopped before it was started")
                return
            async with self._slots:
                await self._engine.launch(await self._launch_builder.build(run, attempt, placement))
        except UsageError as error:
            await self.fail_attempt(attempt, error.message, ExitKind.PREPARE_FAILED)
        except (HopyardError, OSError) as error:
            log.warning("attempt %s was not launched: %s", attempt, error)
            # observed before the failure is recorded, so that no other gang is placed on a failed node
            await self._observe_now()
            await self.fail_attempt(attempt, str(error), ExitKind.NODE_FAULT)
        except Exception as error:
            log.exception("attempt %s was not launched", attempt)
            await self.fail_attempt(attempt, f"the engine failed: {type(error).__name__}: {error}")
        finally:
            self._launching.pop(attempt, None)
        self._stop_requests.retry_stop(attempt)

    async def fail_attempt(self, attempt: AttemptId, reason: str, kind: ExitKind = ExitKind.LOST) -> None:
        """Records that the attempt does not run and will not: stops its remaining processes, then lets the
        store decide what follows."""
        await run_logging_errors(self._engine.stop(attempt, StopOrder(0.0)))
        await self._on_recorded(
            await self._cluster.fail_launch(attempt, reason, now=self._clock.now(), kind=kind)
        )
        await run_logging_errors(self._engine.forget(attempt))

    async def cancel(self) -> None:
        pending = [*self._launching.values(), *self._read_tasks]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)


def _estimated_bytes(spec: RunSpec) -> int:
    """Returns about how many bytes of memory a run with this spec takes."""
    values = (
        *spec.env.values(),
        *spec.params.values(),
        *spec.tags.values(),
        *(word for role in spec.roles for word in role.command),
    )
    characters = sum(len(value) for value in values if isinstance(value, str))
    return (
        2000
        + characters
        + 60 * len(values)
        + 120 * len(spec.environment.packages)
        + (0 if spec.study is None else 64 * 1024)
    )

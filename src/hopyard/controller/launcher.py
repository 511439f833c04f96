"""Starting on the engine what was placed, or saying that it could not be started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from hopyard.controller.effects import guard_effect, log
from hopyard.controller.endings import Endings
from hopyard.controller.launches import Composer
from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, split_attempt
from hopyard.errors import HopyardError
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, Recorded
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.run_store import RunStore

LAUNCHES_AT_ONCE = 32


class Launcher:
    """quiet: held while the controller compares what lives with what the engine saw; no launch begins meanwhile.
    react: awaited with what a failed launch changed."""

    def __init__(
        self,
        *,
        cluster: ClusterStore,
        runs: RunStore,
        engine: Engine,
        clock: Clock,
        composer: Composer,
        endings: Endings,
        quiet: asyncio.Lock,
        react: Callable[[Recorded], Awaitable[None]],
    ) -> None:
        self._cluster, self._runs, self._engine, self._clock = cluster, runs, engine, clock
        self._composer, self._endings, self._quiet, self._react = composer, endings, quiet, react
        self._slots = asyncio.Semaphore(LAUNCHES_AT_ONCE)
        self._under_way: dict[AttemptId, asyncio.Task[None]] = {}

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._under_way

    def __len__(self) -> int:
        return len(self._under_way)

    def under_way(self) -> set[AttemptId]:
        return set(self._under_way)

    def launch(self, attempt: AttemptId, placement: Placement) -> None:
        if attempt not in self._under_way:
            self._under_way[attempt] = asyncio.get_running_loop().create_task(self._launch(attempt, placement))

    async def _launch(self, attempt: AttemptId, placement: Placement) -> None:
        try:
            async with self._slots:
                async with self._quiet:
                    run = await self._runs.get(split_attempt(attempt)[0])
                if run.attempt is None or run.attempt.id != attempt or not AttemptPhase(run.attempt.phase).live:
                    return
                if run.stop_requested:
                    await self.give_up(attempt, "stopped before it was started")
                    return
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
        pending = list(self._under_way.values())
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)

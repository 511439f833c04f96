"""Ends runs with `--idle` that are not used any more, see `domain.idle_rule`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from hopyard.domain.idle_rule import ReplicaUse, idle_reason, idle_time_s
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import Run, RunPhase
from hopyard.errors import HopyardError
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.run_store import RunFilter
from hopyard.interfaces.streams import StreamKey
from hopyard.server.responses import log
from hopyard.server.services import Services
from hopyard.tracking.json_lines import LineReader
from hopyard.tracking.live_run import parse_sample

_INTERVAL = timedelta(seconds=15)
_GRACE_S = 30.0  # for a notebook to save
_READ_BYTES = 1024 * 1024
_PAGE = 500


@dataclass(slots=True)
class _Tail:
    """What was read of the samples of one replica."""

    position: int = 0
    lines: LineReader = field(default_factory=LineReader)
    use: ReplicaUse = ReplicaUse()


class IdleWatch:
    """Looks at all live runs with an idle time of one server."""

    def __init__(self, services: Services, clock: Clock) -> None:
        self._services, self._clock = services, clock
        self._tails: dict[AttemptId, dict[StreamKey, _Tail]] = {}

    async def run(self) -> None:
        """Looks again and again, until it is cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.now() + _INTERVAL)
            try:
                await self.check()
            except HopyardError as error:  # the database is busy or full: the next look may work
                log.warning("idle runs were not looked for: %s", error.message)

    async def check(self) -> None:
        """Ends the runs that are idle for too long. A paused run is not: its user wants it to wait.
        Nor is a study, which waits for its trials."""
        watched: set[AttemptId] = set()
        before: RunId | None = None
        while True:
            page = await self._services.runs.list(
                RunFilter(phases=frozenset([RunPhase.RUNNING]), limit=_PAGE, before=before)
            )
            for run in page:
                if run.spec.idle_s is None or run.spec.study is not None or run.attempt is None:
                    continue
                watched.add(run.attempt.id)
                try:
                    await self._end_if_idle(run)
                except HopyardError as error:  # of this run alone; the next look may work
                    log.warning("run %s was not looked at for --idle: %s", run.name, error.message)
            if len(page) < _PAGE:
                break
            before = page[-1].id
        self._tails = {attempt: tails for attempt, tails in self._tails.items() if attempt in watched}

    async def _end_if_idle(self, run: Run) -> None:
        attempt, limit_s = run.attempt, run.spec.idle_s
        if attempt is None or limit_s is None or attempt.engine != self._services.engine:
            return
        started_at = attempt.started_at or self._clock.now()
        idle_s = idle_time_s(
            await self._read_use(run.id, attempt.id),
            size=sum(attempt.counts) or run.spec.size,
            started_at=started_at.timestamp(),
            connected_at=self._services.connections.last_at(run.id).timestamp(),
            now=self._clock.now().timestamp(),
        )
        if idle_s >= limit_s and not run.stop_requested:
            log.info("run %s is idle for %.0f s and ends", run.name, idle_s)
            await self._services.controller.stop(run.id, StopOrder(_GRACE_S, reason=idle_reason(idle_s)))
            self._services.connections.forget(run.id)

    async def _read_use(self, run: RunId, attempt: AttemptId) -> list[ReplicaUse]:
        tails = self._tails.setdefault(attempt, {})
        for key in await self._services.streams.list(run):
            if key.name == "system" and key.attempt == attempt:
                await self._read(key, tails.setdefault(key, _Tail()))
        return [tail.use for tail in tails.values()]

    async def _read(self, key: StreamKey, tail: _Tail) -> None:
        while data := await self._services.streams.read(key, tail.position, _READ_BYTES):
            tail.position += len(data)
            tail.use = await asyncio.to_thread(_with_lines, tail, data, key.rank)


def _with_lines(tail: _Tail, data: bytes, rank: int) -> ReplicaUse:
    use = tail.use
    for line in tail.lines.feed(data):
        sample = parse_sample(line, rank)
        if sample is not None:
            use = use.with_sample(sample)
    return use

"""The stores of a simulation, by name."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hopyard.config.suggest import unknown_name_hints
from hopyard.domain.cluster import Snapshot
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.errors import SpecError
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.queue_store import QueueStore
from hopyard.interfaces.reservation_store import ReservationStore
from hopyard.interfaces.run_store import RunStore
from hopyard.simulator.virtual_event_loop import IdleDetector
from hopyard.stores.memory.cluster import MemoryClusterStore
from hopyard.stores.memory.queues import MemoryQueueStore, MemoryReservationStore
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import MemoryState

STORE_KINDS = ("memory", "sqlite")


@dataclass(frozen=True, slots=True)
class SimulationStores:
    """One state, seen through the interfaces that a simulation needs."""

    runs: RunStore
    cluster: ClusterStore
    queues: QueueStore
    reservations: ReservationStore

    async def prepare(self, tree: QueueTree, reservations: Sequence[Reservation]) -> None:
        await self.queues.replace(tree)
        for reservation in reservations:
            await self.reservations.create(reservation)


@asynccontextmanager
async def open_stores(kind: str, idle_detector: IdleDetector) -> AsyncIterator[SimulationStores]:
    """Opens empty stores. Raises SpecError for an unknown kind."""
    if kind == "memory":
        state = MemoryState()
        yield SimulationStores(
            MemoryRunStore(state),
            MemoryClusterStore(state),
            MemoryQueueStore(state),
            MemoryReservationStore(state),
        )
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="hopyard-simulation-") as folder:
            async with _sqlite(Path(folder), idle_detector) as stores:
                yield stores
    else:
        raise SpecError(
            f"--store: there is no store `{kind}`",
            hints=unknown_name_hints(kind, STORE_KINDS, subject="stores"),
        )


@asynccontextmanager
async def _sqlite(folder: Path, idle_detector: IdleDetector) -> AsyncIterator[SimulationStores]:
    from hopyard.stores.sql.cluster import SqlClusterStore
    from hopyard.stores.sql.database import Database
    from hopyard.stores.sql.queues import SqlQueueStore
    from hopyard.stores.sql.reservations import SqlReservationStore
    from hopyard.stores.sql.runs import SqlRunStore

    database: Any = _CountedDatabase(Database.open(folder / "simulation.db"), idle_detector)
    try:
        yield SimulationStores(
            SqlRunStore(database),
            SqlClusterStore(database),
            SqlQueueStore(database),
            SqlReservationStore(database),
        )
    finally:
        await database.close()


class AtomicTimesteps:
    """A cluster store that shows a moment to other tasks only after all its events were recorded. A database
    takes time for each event, and a cycle between two of them would see a random half of the moment.

    The writer task sees the moment at all times.
    """

    def __init__(self, cluster: ClusterStore, writer_task: asyncio.Task[Any]) -> None:
        self._cluster, self._writer_task = cluster, writer_task
        self._complete = asyncio.Event()

    def begin(self) -> None:
        self._complete.clear()

    def end(self) -> None:
        self._complete.set()

    async def snapshot(self, *, now: datetime) -> Snapshot:
        if asyncio.current_task() is not self._writer_task:
            await self._complete.wait()
        return await self._cluster.snapshot(now=now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


class _CountedDatabase:
    """A database whose calls in threads are counted: no simulated time passes until they end."""

    def __init__(self, database: Any, idle_detector: IdleDetector) -> None:
        self._database, self._idle_detector = database, idle_detector

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._database, name)
        if name not in ("read", "write", "write_together", "close"):
            return attribute

        async def call(*arguments: Any, **options: Any) -> Any:
            self._idle_detector.calls_in_threads += 1
            try:
                return await attribute(*arguments, **options)
            finally:
                self._idle_detector.calls_in_threads -= 1

        return call

"""The tree of queues and reservations, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hopyard.domain.ids import QueueName, Version
from hopyard.domain.queue import PastUsage, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.run import RunPhase
from hopyard.domain.suggest import close_names
from hopyard.errors import Conflict, NotFound
from hopyard.stores.memory.state import MemoryState


class MemoryQueueStore:
    """Implements `hopyard.interfaces.queue_store.QueueStore`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def tree(self) -> QueueTree:
        return self._state.tree

    async def replace(self, tree: QueueTree, /) -> None:
        parents = {queue.parent for queue in tree.queues.values()}
        for queue, count in (await self.count_waiting()).items():
            if queue not in tree.queues or queue in parents:
                runs = "1 run waits" if count == 1 else f"{count} runs wait"
                raise Conflict(
                    f"{runs} in the queue `{queue}`", hints=("keep it, or move or stop them first",)
                )
        if tree != self._state.tree:
            self._state.tree = tree
            self._state.quota_check.set_tree(tree)
            self._state.mark_declarations_changed()

    async def count_waiting(self) -> Mapping[QueueName, int]:
        return dict(
            Counter(row.gang.queue for row in self._state.runs.values() if row.phase is RunPhase.QUEUED)
        )

    async def past_usage(self) -> Mapping[tuple[QueueName, str], PastUsage]:
        return self._state.cached_past_usage.get()


class MemoryReservationStore:
    """Implements `hopyard.interfaces.reservation_store.ReservationStore`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    async def create(self, reservation: Reservation, /, *, based_on: Version | None = None) -> None:
        if reservation.name in self._state.reservations:
            raise Conflict(f"reservation `{reservation.name}` already exists", hints=("choose another name",))
        if based_on is not None and based_on < self._state.declaration_version:
            raise Conflict("reservations or queues were changed at the same time", hints=("try again",))
        self._state.reservations[reservation.name] = reservation
        self._mark_changed()

    async def list(self) -> Sequence[Reservation]:
        return list(self._state.cached_reservations.get())

    async def get(self, name: str, /) -> Reservation:
        reservation = self._state.reservations.get(name)
        if reservation is None:
            matches = close_names(name, self._state.reservations)
            raise NotFound(
                f"there is no reservation `{name}`",
                hints=(f"did you mean {' or '.join(f'`{match}`' for match in matches)}?",) if matches else (),
            )
        return reservation

    async def delete(self, name: str, /) -> Reservation:
        reservation = await self.get(name)
        del self._state.reservations[name]
        self._mark_changed()
        return reservation

    def _mark_changed(self) -> None:
        self._state.cached_reservations.invalidate()
        self._state.mark_declarations_changed()

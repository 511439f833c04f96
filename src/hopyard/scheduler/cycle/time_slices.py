"""Runs of queues with time slicing, by the time from which gangs of each class may preempt them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from datetime import datetime

from hopyard.domain.cluster import Running
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.queue import QueueTree
from hopyard.scheduler.time_slicing import CLASS_COUNT, preemptible_after_s

SliceKey = tuple[QueueName, int]  # a queue and a priority


class TimeSlices:
    """Updated by starts and ends. The cost depends on the changes and the results, not on the number of
    runs."""

    def __init__(self, queues: QueueTree) -> None:
        self._sliced_queues = {name for name, queue in queues.queues.items() if queue.time_slices}
        self._runs: dict[GangId, tuple[Running, list[float]]] = {}
        # for each class: the times from which it may preempt each run, sorted
        self._due_by_class: dict[SliceKey, list[list[tuple[float, GangId]]]] = {}

    def add(self, running: Running) -> None:
        """Adds a run that holds resources, or updates it. A run whose processes have not started is not
        preempted."""
        if not self._sliced_queues:
            return
        self.drop(running)
        gang = running.gang
        if gang.queue not in self._sliced_queues or not gang.preemptible or running.started_at is None:
            return
        began = running.started_at.timestamp()
        due = [began + after_s for after_s in preemptible_after_s(gang)]
        self._runs[gang.id] = running, due
        lists = self._due_by_class.setdefault(
            (gang.queue, gang.priority), [[] for _ in range(CLASS_COUNT - 1)]
        )
        for due_list, due_at in zip(lists, due, strict=True):
            insort(due_list, (due_at, gang.id))

    def drop(self, running: Running) -> None:
        """Removes a run that holds no resources any more; unknown runs are ignored."""
        if running.gang.id not in self._runs:
            return
        before, due = self._runs.pop(running.gang.id)
        gang = before.gang
        for due_list, due_at in zip(self._due_by_class[gang.queue, gang.priority], due, strict=True):
            del due_list[bisect_left(due_list, (due_at, gang.id))]

    def preemptible_runs(
        self, queue: QueueName, priority: int, service_class: int, now: datetime
    ) -> Iterator[tuple[int, Running]]:
        """Returns the runs that gangs of this class may preempt now, each with the worst class that may
        preempt it."""
        timestamp = now.timestamp()
        due = self._due_list(queue, priority, service_class)
        for _, gang in due[: bisect_right(due, timestamp, key=_due_at)]:
            running, times = self._runs[gang]
            yield bisect_right(times, timestamp) - 1, running

    def next_preemptible_in_s(
        self, queue: QueueName, priority: int, service_class: int, now: datetime
    ) -> float | None:
        """Returns the seconds until gangs of this class may preempt another run; None if they never may."""
        timestamp = now.timestamp()
        due = self._due_list(queue, priority, service_class)
        following = bisect_right(due, timestamp, key=_due_at)
        return due[following][0] - timestamp if following < len(due) else None

    def _due_list(self, queue: QueueName, priority: int, service_class: int) -> list[tuple[float, GangId]]:
        lists = self._due_by_class.get((queue, priority), ())
        return lists[service_class] if service_class < len(lists) else []


def _due_at(due: tuple[float, GangId]) -> float:
    return due[0]

"""Assigns partitions to workers.

A study has one slot per requested worker; partition i belongs to slot i modulo that number. Each worker takes
a slot. If fewer workers join, or one is lost, other workers take several slots; a late worker takes a slot
from the worker with the most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopyard.domain.ids import PartitionId, WorkerId


def partitions_of_slots(slots: frozenset[int], count: int, partition_count: int) -> frozenset[PartitionId]:
    """Returns all partitions of these slots, of `count` in all."""
    return frozenset(PartitionId(index) for index in range(partition_count) if index % count in slots)


def slots_of_partitions(partitions: frozenset[PartitionId], count: int) -> frozenset[int]:
    """Returns the slots of these partitions."""
    return frozenset(partition % count for partition in partitions)


def assign_free_slots(
    assigned: Mapping[WorkerId, frozenset[int]], required: Iterable[int]
) -> dict[WorkerId, frozenset[int]]:
    """Assigns each required slot; a free one goes to the worker with the fewest slots."""
    result = dict(assigned)
    if result:
        for slot in sorted(set(required) - set().union(*result.values())):
            worker = min(result, key=lambda candidate: (len(result[candidate]), candidate))
            result[worker] |= {slot}
    return result


def assign_one_slot(
    new_worker: WorkerId, assigned: Mapping[WorkerId, frozenset[int]], count: int
) -> tuple[int | None, WorkerId | None]:
    """Returns a slot for a worker without one, and the worker that gives it up: None if the slot is free.
    Returns (None, None) if all have exactly one."""
    free = sorted(set(range(count)) - set().union(*assigned.values()))
    if free:
        return free[0], None
    givers = {worker: slots for worker, slots in assigned.items() if worker != new_worker and len(slots) > 1}
    if not givers:
        return None, None
    giver = min(givers, key=lambda candidate: (-len(givers[candidate]), candidate))
    return max(givers[giver]), giver

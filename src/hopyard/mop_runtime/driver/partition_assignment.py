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
    return frozenset(PartitionId(at) for at in range(partition_count) if at % count in slots)


def slots_of_partitions(partitions: frozenset[PartitionId], count: int) -> frozenset[int]:
    """Returns the slots of these partitions."""
    return frozenset(partition % count for partition in partitions)


def assign_free_slots(
    assigned: Mapping[WorkerId, frozenset[int]], required: Iterable[int]
) -> dict[WorkerId, frozenset[int]]:
    """Each of these seats somebody's: one that is free goes to who has fewest."""
    out = dict(assigned)
    if out:
        for seat in sorted(set(required) - set().union(*out.values())):
            worker = min(out, key=lambda one: (len(out[one]), one))
            out[worker] |= {seat}
    return out


def assign_one_slot(
    new_worker: WorkerId, assigned: Mapping[WorkerId, frozenset[int]], count: int
) -> tuple[int | None, WorkerId | None]:
    """The seat of one who has none, and whom it is taken from: nobody where one is free.
    (None, None) where all have one each."""
    free = sorted(set(range(count)) - set().union(*assigned.values()))
    if free:
        return free[0], None
    others = {worker: seats for worker, seats in assigned.items() if worker != new_worker and len(seats) > 1}
    if not others:
        return None, None
    giver = min(others, key=lambda one: (-len(others[one]), one))
    return max(others[giver]), giver

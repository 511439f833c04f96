"""Which worker opens which partitions.

As many seats as the study was promised workers; partition i belongs to seat i modulo that number. Each worker
takes a seat; where fewer come than promised, or one is lost, somebody takes more; one that comes late
relieves who has most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopyard.domain.ids import PartitionId, WorkerId


def partitions_of(seats: frozenset[int], count: int, parts: int) -> frozenset[PartitionId]:
    """All partitions of these seats, of `count` in all."""
    return frozenset(PartitionId(at) for at in range(parts) if at % count in seats)


def seats_of(partitions: frozenset[PartitionId], count: int) -> frozenset[int]:
    """Those that these partitions belong to."""
    return frozenset(partition % count for partition in partitions)


def with_all_taken(
    held: Mapping[WorkerId, frozenset[int]], wanted: Iterable[int]
) -> dict[WorkerId, frozenset[int]]:
    """Each of these seats somebody's: one that is free goes to who has fewest."""
    out = dict(held)
    if out:
        for seat in sorted(set(wanted) - set().union(*out.values())):
            worker = min(out, key=lambda one: (len(out[one]), one))
            out[worker] |= {seat}
    return out


def with_one_for(
    newcomer: WorkerId, held: Mapping[WorkerId, frozenset[int]], count: int
) -> tuple[int | None, WorkerId | None]:
    """The seat of one who has none, and whom it is taken from: nobody where one is free.
    (None, None) where all have one each."""
    free = sorted(set(range(count)) - set().union(*held.values()))
    if free:
        return free[0], None
    others = {worker: seats for worker, seats in held.items() if worker != newcomer and len(seats) > 1}
    if not others:
        return None, None
    giver = min(others, key=lambda one: (-len(others[one]), one))
    return max(others[giver]), giver

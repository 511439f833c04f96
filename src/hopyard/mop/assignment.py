"""Assigns pending trials to idle workers. Assigned trials leave the queue; the coordinator dispatches
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopyard.mop.trial_queue import MopTrial, TrialQueue
from hopyard.mop.workers import MopWorker, Workers, bit_positions

# each trial with the partitions' places and those who read them
Assignments = list[tuple[MopTrial, list[tuple[int, MopWorker]]]]
RankedMasks = list[int]  # what idle workers with equally much work left hold, those with most first


def assign_single(workers: Workers, queue: TrialQueue, size: int) -> Assignments:
    """Again and again the longest remaining trial that some idle worker can take, to the worker with most
    work left.

    Nobody who idled before could take a trial that waited before: only workers that are free since the last
    time look at all trials, and those that idled longer at the trials that came since.
    """
    out: Assignments = []
    idle, fresh, longer = workers.idle, _held_mask(workers.newly_idle), 0
    if len(idle) > len(workers.newly_idle):
        longer = _held_mask(idle.values()) & ~fresh
    ranks: RankedMasks = []
    while fresh or longer:
        trial = queue.find_first(fresh) if fresh else None
        if longer:
            trial = _earliest(trial, queue.added, longer)
        if trial is None:
            break
        can = trial.eligible_mask & (fresh | longer)
        if can & (can - 1):  # there is a choice
            ranks = ranks or _rank_masks(workers)
            can = _most_remaining(ranks, trial, size)
        at = can.bit_length() - 1
        worker = workers.holder(at)
        ranks = [mask & ~worker.train_mask for mask in ranks]
        queue.remove(trial)
        del idle[worker.id]
        fresh, longer = fresh & ~worker.train_mask, longer & ~worker.train_mask
        out.append((trial, [(at, worker)]))
    return out


def _earliest(trial: MopTrial | None, added: Sequence[MopTrial], held_mask: int) -> MopTrial | None:
    """The first of the trials that came since the last time and lack one of these partitions, where it waits
    before `trial`."""
    for other in added:
        if (
            other.eligible_mask & held_mask
            and other.queue_entry is not None
            and (trial is None or trial.queue_entry is None or other.queue_entry < trial.queue_entry)
        ):
            trial = other
    return trial


def _held_mask(workers: Iterable[MopWorker]) -> int:
    held = 0
    for worker in workers:
        held |= worker.train_mask
    return held


def _rank_masks(workers: Workers) -> RankedMasks:
    loads: dict[float, int] = {}
    for worker in workers.idle.values():
        load = workers.load(worker)
        loads[load] = loads.get(load, 0) | worker.train_mask
    return [loads[load] for load in sorted(loads, reverse=True)]


def _most_remaining(ranks: RankedMasks, trial: MopTrial, size: int) -> int:
    """The partition (its bit) of the worker with most work left. Where all else is equal, trial i goes round
    the partitions beginning with the i-th: on a square of equal units that is a Latin square, and no two
    trials ever want the same."""
    wants = trial.eligible_mask
    can = next(wants & mask for mask in ranks if wants & mask)
    start = (trial.first_partition + size - trial.remaining_mask.bit_count()) % size
    ahead = can >> start << start or can
    return ahead & -ahead


def assign_shared(workers: Workers, queue: TrialQueue) -> Assignments:
    """`singly` where several workers hold the same partition: a much slower one leaves some of it to the
    others."""
    out: Assignments = []
    for trial in list(queue):
        if not workers.idle:
            break
        loads = {
            worker.id: -workers.load(worker)
            for worker in workers.idle.values()
            if worker.train_mask & trial.eligible_mask
        }
        for worker_id in sorted(loads, key=lambda one: (loads[one], one)):
            worker = workers.idle[worker_id]
            at = _choose_partition(workers, trial, worker)
            if at is not None:
                queue.remove(trial)
                del workers.idle[worker_id]
                out.append((trial, [(at, worker)]))
                break
    return out


def _choose_partition(workers: Workers, trial: MopTrial, worker: MopWorker) -> int | None:
    """Returns a partition that the trial lacks and the worker holds, unless another worker should train it:
    the partition held by the fewest other workers first, then the one that most trials still need."""
    wanted = [
        at
        for at in bit_positions(trial.eligible_mask & worker.train_mask)
        if not workers.should_yield(worker, at, trial.weight)
    ]
    return min(
        wanted, key=lambda at: (workers.holder_count(at), -workers.remaining_cost[at], at), default=None
    )


def assign_groups(workers: Workers, queue: TrialQueue) -> Assignments:
    """For more idle workers than pending trials: each trial, the longest remaining first, gets a group of
    workers, each with one partition."""
    out: Assignments = []
    trials: Sequence[MopTrial] = list(queue)
    for number, trial in enumerate(trials):
        idle = sorted(workers.idle.values(), key=lambda one: (-workers.load(one), one.id))
        part = -(-len(idle) // (len(trials) - number))
        members: list[tuple[int, MopWorker]] = []
        wants = trial.eligible_mask
        for worker in idle:
            can = wants & worker.train_mask
            if can and len(members) < part:
                at = min(bit_positions(can), key=lambda place: (workers.holder_count(place), place))
                wants &= ~(1 << at)
                members.append((at, worker))
                del workers.idle[worker.id]
        if members:
            queue.remove(trial)
            out.append((trial, sorted(members, key=lambda one: one[0])))
    return out

"""Assigns pending trials to idle workers. Assigned trials leave the queue; the coordinator dispatches
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopyard.mop.trial_queue import MopTrial, TrialQueue
from hopyard.mop.workers import MopWorker, Workers, bit_positions

# each trial with its members: the index of a partition, and the worker that reads it
Assignments = list[tuple[MopTrial, list[tuple[int, MopWorker]]]]
RankedMasks = list[int]  # partitions of idle workers with equal load, the highest load first


def assign_single(workers: Workers, queue: TrialQueue, size: int) -> Assignments:
    """Assigns the longest remaining trial that an idle worker can take to the worker with the most remaining
    work, and repeats that until no trial matches.

    After the last call, no idle worker could take a pending trial. So newly idle workers look at all trials,
    and workers that were idle before only at newly added trials.
    """
    assignments: Assignments = []
    idle, new_mask, old_mask = workers.idle, _held_mask(workers.newly_idle), 0
    if len(idle) > len(workers.newly_idle):
        old_mask = _held_mask(idle.values()) & ~new_mask
    ranks: RankedMasks = []
    while new_mask or old_mask:
        trial = queue.find_first(new_mask) if new_mask else None
        if old_mask:
            trial = _earliest(trial, queue.added, old_mask)
        if trial is None:
            break
        candidates = trial.eligible_mask & (new_mask | old_mask)
        if candidates & (candidates - 1):  # there is a choice
            ranks = ranks or _rank_masks(workers)
            candidates = _most_remaining(ranks, trial, size)
        index = candidates.bit_length() - 1
        worker = workers.holder(index)
        ranks = [mask & ~worker.train_mask for mask in ranks]
        queue.remove(trial)
        del idle[worker.id]
        new_mask, old_mask = new_mask & ~worker.train_mask, old_mask & ~worker.train_mask
        assignments.append((trial, [(index, worker)]))
    return assignments


def _earliest(trial: MopTrial | None, added: Sequence[MopTrial], held_mask: int) -> MopTrial | None:
    """Returns the first of the newly added trials that needs one of these partitions, if it comes before
    `trial` in the queue, otherwise `trial`."""
    for other in added:
        if (
            other.eligible_mask & held_mask
            and other.queue_entry is not None
            and (trial is None or trial.queue_entry is None or other.queue_entry < trial.queue_entry)
        ):
            trial = other
    return trial


def _held_mask(workers: Iterable[MopWorker]) -> int:
    mask = 0
    for worker in workers:
        mask |= worker.train_mask
    return mask


def _rank_masks(workers: Workers) -> RankedMasks:
    loads: dict[float, int] = {}
    for worker in workers.idle.values():
        load = workers.load(worker)
        loads[load] = loads.get(load, 0) | worker.train_mask
    return [loads[load] for load in sorted(loads, reverse=True)]


def _most_remaining(ranks: RankedMasks, trial: MopTrial, size: int) -> int:
    """Returns the partition (its bit) of the worker with the most remaining work. If all else is equal, trial
    i visits the partitions in turn from the i-th on. On a square of equal units that is a Latin square, and
    no two trials ever need the same partition at once."""
    eligible = trial.eligible_mask
    candidates = next(eligible & mask for mask in ranks if eligible & mask)
    start = (trial.first_partition + size - trial.remaining_mask.bit_count()) % size
    from_start = candidates >> start << start or candidates
    return from_start & -from_start


def assign_shared(workers: Workers, queue: TrialQueue) -> Assignments:
    """Assigns as `assign_single` does, if several workers hold the same partition. A much slower worker
    leaves some of its work to the others."""
    assignments: Assignments = []
    for trial in list(queue):
        if not workers.idle:
            break
        loads = {
            worker.id: -workers.load(worker)
            for worker in workers.idle.values()
            if worker.train_mask & trial.eligible_mask
        }
        for worker_id in sorted(loads, key=lambda candidate: (loads[candidate], candidate)):
            worker = workers.idle[worker_id]
            index = _choose_partition(workers, trial, worker)
            if index is not None:
                queue.remove(trial)
                del workers.idle[worker_id]
                assignments.append((trial, [(index, worker)]))
                break
    return assignments


def _choose_partition(workers: Workers, trial: MopTrial, worker: MopWorker) -> int | None:
    """Returns a partition that the trial lacks and the worker holds, unless another worker should train it:
    the partition held by the fewest other workers first, then the one that most trials still need."""
    candidates = [
        index
        for index in bit_positions(trial.eligible_mask & worker.train_mask)
        if not workers.should_yield(worker, index, trial.weight)
    ]
    return min(
        candidates,
        key=lambda index: (workers.holder_count(index), -workers.remaining_cost[index], index),
        default=None,
    )


def assign_groups(workers: Workers, queue: TrialQueue) -> Assignments:
    """For more idle workers than pending trials: each trial, the longest remaining first, gets a group of
    workers, each with one partition, but not beyond its next report."""
    assignments: Assignments = []
    trials: Sequence[MopTrial] = list(queue)
    for number, trial in enumerate(trials):
        idle = sorted(workers.idle.values(), key=lambda candidate: (-workers.load(candidate), candidate.id))
        group_size = min(-(-len(idle) // (len(trials) - number)), trial.visits_to_report)
        members: list[tuple[int, MopWorker]] = []
        eligible = trial.eligible_mask
        for worker in idle:
            candidates = eligible & worker.train_mask
            if candidates and len(members) < group_size:
                index = min(
                    bit_positions(candidates), key=lambda position: (workers.holder_count(position), position)
                )
                eligible &= ~(1 << index)
                members.append((index, worker))
                del workers.idle[worker.id]
        if members:
            queue.remove(trial)
            assignments.append((trial, sorted(members, key=lambda candidate: candidate[0])))
    return assignments

"""Which waiting trial goes to which idle worker. The chosen leave the queue and the idle; what they do is the
coordinator's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hopyard.mop.queue import Queue, Trial
from hopyard.mop.roster import Roster, Worker, positions

# each trial with the partitions' places and those who read them
Pairs = list[tuple[Trial, list[tuple[int, Worker]]]]
Ranks = list[int]  # what idle workers with equally much work left hold, those with most first


def singly(roster: Roster, queue: Queue, size: int) -> Pairs:
    """Again and again the longest remaining trial that some idle worker can take, to the worker with most
    work left.

    Nobody who idled before could take a trial that waited before: only workers that are free since the last
    time look at all trials, and those that idled longer at the trials that came since.
    """
    out: Pairs = []
    idle, fresh, longer = roster.idle, _held(roster.fresh), 0
    if len(idle) > len(roster.fresh):
        longer = _held(idle.values()) & ~fresh
    ranks: Ranks = []
    while fresh or longer:
        trial = queue.first(fresh) if fresh else None
        if longer:
            trial = _before(trial, queue.news, longer)
        if trial is None:
            break
        can = trial.wants & (fresh | longer)
        if can & (can - 1):  # there is a choice
            ranks = ranks or _ranks(roster)
            can = _most_left(ranks, trial, size)
        at = can.bit_length() - 1
        worker = roster.holder(at)
        ranks = [mask & ~worker.mask for mask in ranks]
        queue.remove(trial)
        del idle[worker.id]
        fresh, longer = fresh & ~worker.mask, longer & ~worker.mask
        out.append((trial, [(at, worker)]))
    return out


def _before(trial: Trial | None, news: Sequence[Trial], held: int) -> Trial | None:
    """The first of the trials that came since the last time and lack one of these partitions, where it waits
    before `trial`."""
    for other in news:
        if (
            other.wants & held
            and other.entry is not None
            and (trial is None or trial.entry is None or other.entry < trial.entry)
        ):
            trial = other
    return trial


def _held(workers: Iterable[Worker]) -> int:
    held = 0
    for worker in workers:
        held |= worker.mask
    return held


def _ranks(roster: Roster) -> Ranks:
    loads: dict[float, int] = {}
    for worker in roster.idle.values():
        load = roster.load(worker)
        loads[load] = loads.get(load, 0) | worker.mask
    return [loads[load] for load in sorted(loads, reverse=True)]


def _most_left(ranks: Ranks, trial: Trial, size: int) -> int:
    """The partition (its bit) of the worker with most work left. Where all else is equal, trial i goes round
    the partitions beginning with the i-th: on a square of equal units that is a Latin square, and no two
    trials ever want the same."""
    wants = trial.wants
    can = next(wants & mask for mask in ranks if wants & mask)
    start = (trial.turn + size - trial.todo.bit_count()) % size
    ahead = can >> start << start or can
    return ahead & -ahead


def shared(roster: Roster, queue: Queue) -> Pairs:
    """`singly` where several workers hold the same partition: a much slower one leaves some of it to the
    others."""
    out: Pairs = []
    for trial in list(queue):
        if not roster.idle:
            break
        loads = {
            worker.id: -roster.load(worker) for worker in roster.idle.values() if worker.mask & trial.wants
        }
        for worker_id in sorted(loads, key=lambda one: (loads[one], one)):
            worker = roster.idle[worker_id]
            at = _place_for(roster, trial, worker)
            if at is not None:
                queue.remove(trial)
                del roster.idle[worker_id]
                out.append((trial, [(at, worker)]))
                break
    return out


def _place_for(roster: Roster, trial: Trial, worker: Worker) -> int | None:
    """A partition that it lacks, the worker holds and need not leave to another: first what fewest others
    hold, then what most still need."""
    wanted = [
        at for at in positions(trial.wants & worker.mask) if not roster.leaves(worker, at, trial.weight)
    ]
    return min(wanted, key=lambda at: (roster.holders(at), -roster.left[at], at), default=None)


def together(roster: Roster, queue: Queue) -> Pairs:
    """More idle workers than trials that wait: the longest remaining first takes its part of the workers,
    each on a partition."""
    out: Pairs = []
    trials: Sequence[Trial] = list(queue)
    for number, trial in enumerate(trials):
        idle = sorted(roster.idle.values(), key=lambda one: (-roster.load(one), one.id))
        part = -(-len(idle) // (len(trials) - number))
        members: list[tuple[int, Worker]] = []
        wants = trial.wants
        for worker in idle:
            can = wants & worker.mask
            if can and len(members) < part:
                at = min(positions(can), key=lambda place: (roster.holders(place), place))
                wants &= ~(1 << at)
                members.append((at, worker))
                del roster.idle[worker.id]
        if members:
            queue.remove(trial)
            out.append((trial, sorted(members, key=lambda one: one[0])))
    return out

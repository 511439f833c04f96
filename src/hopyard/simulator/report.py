"""The result of a simulation, as numbers. Times in seconds of the workload, GPUs as numbers of whole ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hopyard.config.units import GIB
from hopyard.domain.duration_text import format_whole_duration
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, MEMORY
from hopyard.domain.resources import WHOLE_GPU
from hopyard.simulator.fairness import FairShareAccounting, jain_index
from hopyard.simulator.recorder import RunTimeline, Sample, SimulationRecorder
from hopyard.simulator.reservations import ReservedShare
from hopyard.simulator.workload import Workload

# up to so many
SIZE_CLASSES = ((0, "no GPU"), (1, "1 GPU"), (4, "2-4 GPUs"), (8, "5-8 GPUs"), (1 << 62, "over 8 GPUs"))
CURVE_POINTS = 200
_UNITS = {GPU: WHOLE_GPU, CPU: 1000, MEMORY: GIB}  # of which reports tell hours


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of a number of values. All 0 where there is none."""

    count: int = 0
    mean: float = 0.0
    median: float = 0.0
    p99: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class SizeGroup:
    """Runs of one size: how long they waited for their first start, and took from submission to end."""

    name: str
    wait: Distribution
    completion: Distribution


@dataclass(frozen=True, slots=True)
class QueueShare:
    """resource: the resource by which the queue is measured (see `fairness.FairShares`), as `domain.queue`
    names it, "" where its runs request nothing. received, entitled: hours of it: GPU hours, core hours, GiB
    hours."""

    name: str
    runs: int
    resource: str
    received: float
    entitled: float
    wait: Distribution
    completion: Distribution

    @property
    def ratio(self) -> float | None:
        """None where it was entitled to nothing, so that there is nothing to measure by."""
        return self.received / self.entitled if self.entitled else None


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that was never submitted, and what it lacks."""

    row: str
    why: str


@dataclass(frozen=True, slots=True)
class LostWork:
    """preemptions, node_losses: how many. gpu_seconds: what machines did in vain for runs that ended early,
    with the starting and restoring that followed; seconds: the same without counting the GPUs."""

    preemptions: int
    preempted_runs: int
    killed: int
    node_losses: int
    seconds: float
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class PromiseStats:
    """given; kept: started by then; late: not, without a word; broken: by cause; first: some of the breaches,
    in words."""

    given: int
    kept: int
    late: int
    broken: Mapping[str, int]
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Our own seconds: not a part of what is compared."""

    wall_s: float
    policy_s: float
    turns: int


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """gpu_use, cpu_use: mean part in use, from the first submission to the last end; fragmentation: mean over
    the same time of the part of what is free that is of no use (see `fragments`). unfinished: runs that had
    not ended, by the reason of their wait; refused: larger than the cluster, never submitted, by what they
    lack; too_large: each of them. jain: None where no queue received any of what it was entitled to. by_gpu:
    whether the cluster has GPUs. waits, completions: sorted, thinned out, for curves."""

    policy: str
    workload: str
    runs: int
    ended: int
    refused: Mapping[str, int]
    unfinished: Mapping[str, int]
    makespan_s: float
    gpu_use: float
    cpu_use: float
    fragmentation: float
    wait: Distribution
    completion: Distribution
    groups: tuple[SizeGroup, ...]
    queues: tuple[QueueShare, ...]
    jain: float | None
    losses: LostWork
    promises: PromiseStats
    gpu_hours: float
    by_gpu: bool
    too_large: tuple[RejectedRow, ...] = ()
    reservations: tuple[ReservedShare, ...] = ()
    samples: tuple[Sample, ...] = ()
    waits: tuple[float, ...] = ()
    completions: tuple[float, ...] = ()
    timing: Timing = field(default=Timing(0.0, 0.0, 0), compare=False)

    def to_json(self) -> dict[str, Any]:
        """As plain values; `timing` differs from one play to the next, nothing else does."""
        plain = asdict(self)
        for queue, share in zip(plain["queues"], self.queues, strict=True):
            queue["ratio"] = share.ratio
        for reserved, kept in zip(plain["reservations"], self.reservations, strict=True):
            reserved["ratio"] = kept.ratio
        return plain


def make_report(
    policy: str,
    workload: Workload,
    recorder: SimulationRecorder,
    *,
    waiting: Mapping[str, str],
    refused: Sequence[RejectedRow],
    timing: Timing,
) -> SimulationReport:
    stories = recorder.timelines
    done = [story for story in stories.values() if story.ended_at is not None]
    first, last = recorder.first_at or recorder.start, recorder.last_end or recorder.now
    makespan_s = max((last - first).total_seconds(), 0.0)
    open_runs = {run: story for run, story in stories.items() if story.ended_at is None}
    span_us = makespan_s * 1e6
    ledger = recorder.ledger
    began_s, ended_s = (first - recorder.start).total_seconds(), (last - recorder.start).total_seconds()
    within = [sample for sample in recorder.samples if began_s <= sample.at_s <= ended_s]
    queues = _queue_shares(recorder, done)
    ratios = [queue.ratio for queue in queues if queue.ratio is not None]
    return SimulationReport(
        policy=policy,
        workload=workload.name,
        runs=len(workload.runs),
        ended=len(done),
        refused=dict(Counter(one.why for one in refused)),
        unfinished=dict(
            Counter(
                "running" if story.started_at and run not in waiting else waiting.get(run, "waiting")
                for run, story in open_runs.items()
            )
        ),
        makespan_s=makespan_s,
        gpu_use=recorder.gpu_time / (ledger.gpu_total * span_us) if ledger.gpu_total and span_us else 0.0,
        cpu_use=recorder.cpu_time / (ledger.cpu_total * span_us) if ledger.cpu_total and span_us else 0.0,
        fragmentation=sum(sample.fragmentation for sample in within) / len(within) if within else 0.0,
        wait=distribution(map(_wait_s, done)),
        completion=distribution(map(_completion_s, done)),
        groups=_size_groups(done),
        queues=queues,
        jain=jain_index(ratios) if any(ratios) else None,
        losses=_lost_work(recorder),
        promises=_promise_stats(recorder),
        gpu_hours=recorder.gpu_time / WHOLE_GPU / 3.6e9,
        by_gpu=bool(ledger.gpu_total),
        too_large=tuple(refused),
        reservations=tuple(one.to_share() for one in recorder.reservations),
        samples=tuple(recorder.samples),
        waits=_curve(map(_wait_s, done)),
        completions=_curve(map(_completion_s, done)),
        timing=timing,
    )


def distribution(values: Iterable[float]) -> Distribution:
    ordered = sorted(values)
    if not ordered:
        return Distribution()
    return Distribution(
        len(ordered),
        sum(ordered) / len(ordered),
        quantile(ordered, 0.5),
        quantile(ordered, 0.99),
        ordered[-1],
    )


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Linear between the neighbours."""
    at = fraction * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _wait_s(timeline: RunTimeline) -> float:
    return (
        (timeline.started_at - timeline.submitted_at).total_seconds()
        if timeline.started_at is not None
        else 0.0
    )


def _completion_s(timeline: RunTimeline) -> float:
    return (
        (timeline.ended_at - timeline.submitted_at).total_seconds() if timeline.ended_at is not None else 0.0
    )


def _curve(values: Iterable[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    if len(ordered) <= CURVE_POINTS:
        return tuple(ordered)
    return tuple(quantile(ordered, point / (CURVE_POINTS - 1)) for point in range(CURVE_POINTS))


def _size_groups(completed: Sequence[RunTimeline]) -> tuple[SizeGroup, ...]:
    found: dict[str, list[RunTimeline]] = {name: [] for _, name in SIZE_CLASSES}
    for story in completed:
        found[next(name for most, name in SIZE_CLASSES if story.gpus <= most)].append(story)
    return tuple(
        SizeGroup(name, distribution(map(_wait_s, group)), distribution(map(_completion_s, group)))
        for name, group in found.items()
        if group
    )


def _queue_shares(recorder: SimulationRecorder, completed: Sequence[RunTimeline]) -> tuple[QueueShare, ...]:
    by_queue: dict[str, list[RunTimeline]] = {}
    for story in completed:
        by_queue.setdefault(story.queue, []).append(story)
    runs = Counter(story.queue for story in recorder.timelines.values())
    return tuple(
        _queue_share(name, runs[name], recorder.shares, by_queue.get(name, [])) for name in sorted(runs)
    )


def _queue_share(
    name: QueueName, runs: int, shares: FairShareAccounting, completed: Sequence[RunTimeline]
) -> QueueShare:
    resource = shares.measured_resource.get(name, "")
    hour = _UNITS.get(resource, 1) * 3.6e9
    received, entitled = shares.received.get(name, 0.0) / hour, shares.entitled.get(name, 0.0) / hour
    return QueueShare(
        name,
        runs,
        resource,
        received,
        entitled,
        distribution(map(_wait_s, completed)),
        distribution(map(_completion_s, completed)),
    )


def _lost_work(recorder: SimulationRecorder) -> LostWork:
    stories = list(recorder.timelines.values())
    return LostWork(
        preemptions=sum(story.preempted for story in stories),
        preempted_runs=sum(story.preempted > 0 for story in stories),
        killed=sum(story.killed for story in stories),
        node_losses=recorder.node_losses,
        seconds=sum(story.lost_time.total_seconds() for story in stories),
        gpu_seconds=sum(story.lost_gpu_time.total_seconds() for story in stories),
    )


def _promise_stats(recorder: SimulationRecorder) -> PromiseStats:
    first = tuple(
        f"after {format_whole_duration(at)}: {gang} ({cause}): {detail}"
        for at, cause, gang, detail in recorder.breaches[:10]
    )
    return PromiseStats(
        recorder.promises_made,
        recorder.promises_kept,
        recorder.promises_late,
        dict(sorted(recorder.causes.items())),
        first,
    )

"""The result of a simulation, as numbers. Times are in seconds of the workload; GPUs count as whole GPUs."""

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

# the largest number of GPUs, and the name
SIZE_CLASSES = ((0, "no GPU"), (1, "1 GPU"), (4, "2-4 GPUs"), (8, "5-8 GPUs"), (1 << 62, "over 8 GPUs"))
CURVE_POINTS = 200
_UNITS = {GPU: WHOLE_GPU, CPU: 1000, MEMORY: GIB}  # reports give hours of these units


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of a number of values. All 0 if there is none."""

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
    """resource: the resource by which the queue is measured (see `fairness.FairShareAccounting`), named as in
    `domain.queue`; "" if its runs request nothing. received, entitled: hours of it: GPU hours, core hours,
    GiB hours."""

    name: str
    runs: int
    resource: str
    received: float
    entitled: float
    wait: Distribution
    completion: Distribution

    @property
    def ratio(self) -> float | None:
        """Returns None if the queue was entitled to nothing."""
        return self.received / self.entitled if self.entitled else None


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that was never submitted, and the reason."""

    row: str
    why: str


@dataclass(frozen=True, slots=True)
class LostWork:
    """preemptions, node_losses: counts. gpu_seconds: machine time lost by runs that ended early, with the
    starts and restores that followed. seconds: the same without counting the GPUs."""

    preemptions: int
    preempted_runs: int
    killed: int
    node_losses: int
    seconds: float
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class PromiseStats:
    """given: all promises. kept: started in time. late: started late, without a recorded breach. broken:
    breaches by cause. first: some of the breaches, in words."""

    given: int
    kept: int
    late: int
    broken: Mapping[str, int]
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Real seconds of the simulation, which are not part of a comparison."""

    wall_s: float
    policy_s: float
    turns: int


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """gpu_use, cpu_use: mean share in use, from the first submission to the last end. fragmentation: mean
    over the same time of the share of the free capacity that is of no use (see `fragmentation`). unfinished:
    runs that had not ended, by the reason of their wait. refused: runs that are larger than the cluster and
    were never submitted, by what they lack. too_large: each of them. jain: None if no queue received any of
    its entitlement. by_gpu: whether the cluster has GPUs. waits, completions: sorted and thinned out, for
    curves."""

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
        """Returns plain values. Only `timing` differs between two simulations with equal arguments."""
        values = asdict(self)
        for queue, share in zip(values["queues"], self.queues, strict=True):
            queue["ratio"] = share.ratio
        for reserved, reserved_share in zip(values["reservations"], self.reservations, strict=True):
            reserved["ratio"] = reserved_share.ratio
        return values


def make_report(
    policy: str,
    workload: Workload,
    recorder: SimulationRecorder,
    *,
    waiting: Mapping[str, str],
    refused: Sequence[RejectedRow],
    timing: Timing,
) -> SimulationReport:
    timelines = recorder.timelines
    completed = [timeline for timeline in timelines.values() if timeline.ended_at is not None]
    first, last = recorder.first_at or recorder.start, recorder.last_end or recorder.now
    makespan_s = max((last - first).total_seconds(), 0.0)
    open_runs = {run: timeline for run, timeline in timelines.items() if timeline.ended_at is None}
    span_us = makespan_s * 1e6
    allocations = recorder.allocations
    began_s, ended_s = (first - recorder.start).total_seconds(), (last - recorder.start).total_seconds()
    samples = [sample for sample in recorder.samples if began_s <= sample.at_s <= ended_s]
    queues = _queue_shares(recorder, completed)
    ratios = [queue.ratio for queue in queues if queue.ratio is not None]
    return SimulationReport(
        policy=policy,
        workload=workload.name,
        runs=len(workload.runs),
        ended=len(completed),
        refused=dict(Counter(entry.why for entry in refused)),
        unfinished=dict(
            Counter(
                "running" if timeline.started_at and run not in waiting else waiting.get(run, "waiting")
                for run, timeline in open_runs.items()
            )
        ),
        makespan_s=makespan_s,
        gpu_use=recorder.gpu_time / (allocations.gpu_total * span_us)
        if allocations.gpu_total and span_us
        else 0.0,
        cpu_use=recorder.cpu_time / (allocations.cpu_total * span_us)
        if allocations.cpu_total and span_us
        else 0.0,
        fragmentation=sum(sample.fragmentation for sample in samples) / len(samples) if samples else 0.0,
        wait=distribution(map(_wait_s, completed)),
        completion=distribution(map(_completion_s, completed)),
        groups=_size_groups(completed),
        queues=queues,
        jain=jain_index(ratios) if any(ratios) else None,
        losses=_lost_work(recorder),
        promises=_promise_stats(recorder),
        gpu_hours=recorder.gpu_time / WHOLE_GPU / 3.6e9,
        by_gpu=bool(allocations.gpu_total),
        too_large=tuple(refused),
        reservations=tuple(entry.to_share() for entry in recorder.reservations),
        samples=tuple(recorder.samples),
        waits=_curve(map(_wait_s, completed)),
        completions=_curve(map(_completion_s, completed)),
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
    """Returns the quantile, linear between the neighbours."""
    position = fraction * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


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
    groups: dict[str, list[RunTimeline]] = {name: [] for _, name in SIZE_CLASSES}
    for timeline in completed:
        groups[next(name for limit, name in SIZE_CLASSES if timeline.gpus <= limit)].append(timeline)
    return tuple(
        SizeGroup(name, distribution(map(_wait_s, group)), distribution(map(_completion_s, group)))
        for name, group in groups.items()
        if group
    )


def _queue_shares(recorder: SimulationRecorder, completed: Sequence[RunTimeline]) -> tuple[QueueShare, ...]:
    by_queue: dict[str, list[RunTimeline]] = {}
    for timeline in completed:
        by_queue.setdefault(timeline.queue, []).append(timeline)
    runs = Counter(timeline.queue for timeline in recorder.timelines.values())
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
    timelines = list(recorder.timelines.values())
    return LostWork(
        preemptions=sum(timeline.preempted for timeline in timelines),
        preempted_runs=sum(timeline.preempted > 0 for timeline in timelines),
        killed=sum(timeline.killed for timeline in timelines),
        node_losses=recorder.node_losses,
        seconds=sum(timeline.lost_time.total_seconds() for timeline in timelines),
        gpu_seconds=sum(timeline.lost_gpu_time.total_seconds() for timeline in timelines),
    )


def _promise_stats(recorder: SimulationRecorder) -> PromiseStats:
    examples = tuple(
        f"after {format_whole_duration(at_s)}: {gang} ({cause}): {detail}"
        for at_s, cause, gang, detail in recorder.breaches[:10]
    )
    return PromiseStats(
        recorder.promises_made,
        recorder.promises_kept,
        recorder.promises_late,
        dict(sorted(recorder.causes.items())),
        examples,
    )

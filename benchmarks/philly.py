"""Months of a real cluster, replayed: how long runs take from submission to end, under several policies in
the same run.

    python -m benchmarks.philly --trace FILE [--policy NAME]... [--nodes N | --load 0.8] [--limit N] [--json]

The real controller and policy over a memory store, an engine whose runs only take time, and a clock that
jumps (`hop simulate` is the same for people). A policy knows of a run what its owner would have said at
submission, and of those that have ended how long they took; how long a run takes, only the engine knows.
`--policy` names one, may be repeated, or is `all`.

The trace: `timestamp,duration,num_gpus,cluster`, the format of the Philly traces (Jeon et al., USENIX
ATC'19). They do not say on what their runs were after the filtering that made them, so the cluster is
`--nodes` alike of `--gpus-per-node`, or by default as many as make the trace's GPU time, of the 98 of 100
runs in the middle, `--load` of what they have meanwhile; never fewer than the largest run needs. Every
preemption costs `--save` seconds on its GPUs before it leaves, and every return `--restore`.

Queues (`--queues`): `one`: all share one queue that slices time, and the virtual cluster that a run came from
is its user. `virtual`: a queue for each virtual cluster, guaranteed the part of the GPUs that its runs ask of
all GPU time, each slicing time. Without it: `virtual` for `capacity`, which is an order of queues, and `one`
for all others, which heed none but `hopyard`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.harness import print_error, read_limits, say
from hopyard.domain.cluster import Node
from hopyard.domain.ids import DEFAULT_QUEUE, NodeId, QueueName
from hopyard.domain.queue import GPU, Queue, QueueTree
from hopyard.domain.resources import WHOLE_GPU, Gpu
from hopyard.errors import HopyardError
from hopyard.scheduler.policies.registry import POLICIES
from hopyard.simulator.report import SimulationReport
from hopyard.simulator.settings import SimulatedCluster, SimulationProgress, SimulationSettings, TimeCosts
from hopyard.simulator.simulate import simulate
from hopyard.simulator.traces.philly import read_trace
from hopyard.simulator.workload import Workload, WorkloadRun

NAME = "philly"
DEFAULT = ("fifo", "capacity", "las", "hopyard")
LIMITS_FILE = Path(__file__).with_name("philly_limits.json")
MIDDLE = 0.98  # of all runs; the first and the last arrive when the cluster is nearly idle
HOUR_S = 3600.0
CPU_MILLI, MEMORY_BYTES = 64_000, 256 << 30  # of a node; no run waits for them


def gpus_of(run: WorkloadRun) -> int:
    return sum(role.replicas * role.resources.gpus for role in run.spec.roles)


def nodes_for(workload: Workload, gpus_per_node: int, load: float) -> int:
    """How many nodes make the trace this load."""
    runs = workload.runs
    spared = int(len(runs) * (1 - MIDDLE) / 2)
    middle = runs[spared : len(runs) - spared]
    span_s = max(middle[-1].at_s - middle[0].at_s, 1.0)
    wanted = sum(gpus_of(run) * run.duration_s for run in middle) / span_s / load
    return max(ceil(wanted / gpus_per_node), *(ceil(gpus_of(run) / gpus_per_node) for run in runs))


def machines(count: int, gpus: int) -> tuple[Node, ...]:
    cards = tuple(Gpu(index, "P100") for index in range(gpus))
    return tuple(
        Node(NodeId(f"node-{at:03}"), "simulated", CPU_MILLI, MEMORY_BYTES, cards) for at in range(count)
    )


def in_one_queue(workload: Workload) -> tuple[Workload, QueueTree]:
    runs = tuple(replace(run, spec=replace(run.spec, queue=DEFAULT_QUEUE)) for run in workload.runs)
    return replace(workload, runs=runs), QueueTree({DEFAULT_QUEUE: Queue(DEFAULT_QUEUE, time_slices=True)})


def in_virtual_clusters(workload: Workload, gpus: int) -> tuple[Workload, QueueTree]:
    asked: Counter[QueueName] = Counter()
    for run in workload.runs:
        asked[run.spec.queue or DEFAULT_QUEUE] += round(gpus_of(run) * run.duration_s)
    total = max(sum(asked.values()), 1)
    queues = {
        name: Queue(name, guarantee={GPU: gpus * WHOLE_GPU * seconds // total}, time_slices=True)
        for name, seconds in sorted(asked.items())
    }
    return workload, QueueTree(queues, min(queues))


def play(policy: str, workload: Workload, options: argparse.Namespace) -> SimulationReport:
    count = options.nodes or nodes_for(workload, options.gpus_per_node, options.load)
    virtual = (options.queues or ("virtual" if policy == "capacity" else "one")) == "virtual"
    gpus = count * options.gpus_per_node
    played, tree = in_virtual_clusters(workload, gpus) if virtual else in_one_queue(workload)
    settings = SimulationSettings(
        costs=TimeCosts(save_s=options.save, restore_s=options.restore),
        on_progress=None if options.quiet else _Watch(),
    )
    return simulate(played, SimulatedCluster(machines(count, options.gpus_per_node), tree), policy, settings)


class _Watch:
    """Reports the progress after every tenth of the runs."""

    def __init__(self) -> None:
        self._told = 0

    def __call__(self, at: SimulationProgress) -> None:
        tenths = 10 * at.ended // max(at.runs, 1)
        if tenths > self._told:
            self._told = tenths
            say(
                f"{at.policy}: {10 * tenths}% ended, {at.now:%Y-%m-%d}, {at.running} run, {at.waiting} "
                f"wait, {at.used:.0%} used"
            )


def line(report: SimulationReport, nodes: int, gpus: int) -> dict[str, Any]:
    """Returns the printed figures of one policy. Times in hours of the trace; wall_s and policy_s in real
    seconds."""
    return {
        "policy": report.policy,
        "runs": report.runs,
        "ended": report.ended,
        "nodes": nodes,
        "gpus": gpus,
        "mean_jct_h": report.completion.mean / HOUR_S,
        "median_jct_h": report.completion.median / HOUR_S,
        "p99_jct_h": report.completion.p99 / HOUR_S,
        "max_jct_h": report.completion.most / HOUR_S,
        "mean_wait_h": report.wait.mean / HOUR_S,
        "p99_wait_h": report.wait.p99 / HOUR_S,
        "gpu_use": report.gpu_use,
        "preemptions": report.losses.preemptions,
        "lost_gpu_h": report.losses.gpu_seconds / HOUR_S,
        "turns": report.timing.turns,
        "policy_s": report.timing.policy_s,
        "wall_s": report.timing.wall_s,
    }


def measure(workload: Workload, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line per policy. Raises RuntimeError where runs that fit the cluster did not end."""
    for policy in options.policy:
        report = play(policy, workload, options)
        if report.ended + sum(report.refused.values()) < report.runs:
            raise RuntimeError(
                f"{policy}: only {report.ended} of {report.runs} runs ended: {dict(report.unfinished)}"
            )
        nodes = options.nodes or nodes_for(workload, options.gpus_per_node, options.load)
        yield line(report, nodes, nodes * options.gpus_per_node)


def verdicts(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the ratios of Hopyard's figures to the best other policy, with the limits of
    philly_limits.json."""
    ours = [one for one in lines if one["policy"] == "hopyard"]
    others = [one for one in lines if one["policy"] != "hopyard"]
    limits, told = read_limits(LIMITS_FILE), []
    for name, key in (("mean", "mean_jct_h"), ("p99", "p99_jct_h")) if ours and others else ():
        best = min(others, key=lambda one: float(one[key]))
        over, limit = ours[0][key] / best[key], limits[f"{NAME}.{name}_over_best"]
        verdict = "ok" if limit.holds(over) else "MISSED"
        told.append(
            f"{name}: hopyard / {best['policy']} = {over:.3f} ({limit.direction} {limit.limit:g}: {verdict})"
        )
    return told


def row(one: dict[str, Any]) -> str:
    figures = " ".join(
        f"{one[key]:>10.3f}"
        for key in ("mean_jct_h", "median_jct_h", "p99_jct_h", "max_jct_h", "mean_wait_h")
    )
    return f"{one['policy']:10} {figures} {one['preemptions']:>11} {one['wall_s']:>7.0f}"


HEADING = (
    f"{'policy':10} "
    + " ".join(f"{name:>10}" for name in ("mean h", "median h", "p99 h", "max h", "wait h"))
    + f" {'preemptions':>11} {'wall s':>7}"
)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _part(text: str) -> float:
    value = float(text)
    if not 0 < value < 10:
        raise argparse.ArgumentTypeError("must be above 0 and below 10")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= HOUR_S:
        raise argparse.ArgumentTypeError("must be 0 to 3600 seconds")
    return value


def _policies(named: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(POLICIES) if named and "all" in named else tuple(dict.fromkeys(named or DEFAULT))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--policy", action="append", choices=[*POLICIES, "all"], help=f"default: {', '.join(DEFAULT)}"
    )
    parser.add_argument("--nodes", type=_positive, help="how many machines (default: by --load)")
    parser.add_argument("--gpus-per-node", type=_positive, default=8)
    parser.add_argument(
        "--load", type=_part, default=0.8, help="GPU time asked for of GPU time there is (default: 0.8)"
    )
    parser.add_argument("--queues", choices=["one", "virtual"])
    parser.add_argument(
        "--save", type=_seconds, default=30.0, help="seconds to save a checkpoint (default: 30)"
    )
    parser.add_argument(
        "--restore", type=_seconds, default=30.0, help="seconds to read it back (default: 30)"
    )
    parser.add_argument("--first", type=_positive, metavar="N", help="leave out the runs before the Nth")
    parser.add_argument(
        "--limit", type=_positive, metavar="N", help="so many runs of the trace, the first ones"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, one per policy")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    options.policy = _policies(options.policy)
    try:
        workload = read_trace(options.trace, replica_gpus=options.gpus_per_node)
    except HopyardError as error:
        return print_error(error)
    for problem in workload.problems:
        say(f"{options.trace}:{problem.line}: {problem.text} (left out)")
    first = (options.first or 1) - 1
    workload = replace(
        workload, runs=workload.runs[first : None if options.limit is None else first + options.limit]
    )
    if not workload.runs:
        print(
            f"error: {options.trace}: no runs are left of it\nhint: --first and --limit choose which",
            file=sys.stderr,
        )
        return 2
    if not options.json:
        print(HEADING)
    lines = []
    for one in measure(workload, options):
        lines.append(one)
        print(json.dumps(one) if options.json else row(one), flush=True)
    for told in verdicts(lines):
        say(told)
    return 0


if __name__ == "__main__":
    raise SystemExit(run())

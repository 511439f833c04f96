"""One gang that wants the whole cluster, against an endless stream of runs of one GPU.

    python -m benchmarks.starvation [--gpus 64] [--takes 600] [--every 9]

The stream alone keeps all GPUs in use for ever: it brings a little more than they can do. (If it brought much
more, most of the wait would be for those that came before.) All are of one user and one queue. The shortest
possible wait is until the last run has ended that was running when the gang came, with nothing started after
it. Measured: how many times as long it waits, once with durations that the runs state (`--time`), once with
durations that only the history tells, once with no history at all. Pure: the planner on a clock that jumps.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from benchmarks.harness import Arguments, Report, main
from benchmarks.peers.find import PeerPython
from hopyard.domain.cluster import Node, Promise, Running, Snapshot
from hopyard.domain.duration_keys import MAX_DURATIONS, history_keys
from hopyard.domain.gang import Gang, Role
from hopyard.domain.ids import AttemptId, GangId, NodeId, Version
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.cycle.planner import Planner

NAME = "starvation"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
CARDS = tuple(Gpu(index, "A100") for index in range(8))
KNOWN = ("stated", "learned", "unknown")


@dataclass
class Stream:
    """A cluster of nodes with 8 GPUs, and its arrivals. known: the source of the durations that the planner
    knows."""

    gpus: int
    takes_s: float
    known: str
    random: Random
    now: datetime = NOW
    pending: dict[GangId, Gang] = field(default_factory=dict)
    running: dict[GangId, tuple[Running, datetime]] = field(default_factory=dict)
    promises: dict[GangId, Promise] = field(default_factory=dict)
    durations: dict[str, tuple[float, ...]] = field(default_factory=dict)
    planner: Planner = field(default_factory=Planner)
    versions: int = 0

    def __post_init__(self) -> None:
        self.nodes = {
            NodeId(f"n{number}"): Node(NodeId(f"n{number}"), "sim", 64000, 2**40, CARDS)
            for number in range(self.gpus // 8)
        }

    def submit(self, name: str, replicas: int, gpus: int) -> None:
        limit_s = 1.2 * self.takes_s if self.known == "stated" else None
        role = Role("worker", replicas, Resources(1000, 2**30, gpus))
        self.pending[GangId(name)] = Gang(
            GangId(name), (role,), self.now, user="u", time_limit_s=limit_s, script=f"train{gpus}.py"
        )

    def run_cycle(self) -> None:
        self.versions += 1
        running = tuple(run for run, _ in self.running.values())
        pending = tuple(self.pending.values())
        plan = self.planner(
            Snapshot(
                Version(self.versions),
                self.now,
                self.nodes,
                pending,
                running,
                promises=dict(self.promises),
                durations=self.durations,
            )
        )
        self.promises = {promise.gang: promise for promise in plan.promises}
        for placement in plan.place:
            del self.pending[placement.gang.id]
            run = Running(placement, self.now, AttemptId(f"{placement.gang.id}.1"), self.now)
            until = self.now + timedelta(seconds=self.takes_s * self.random.uniform(0.8, 1.2))
            self.running[placement.gang.id] = run, until

    def run_until(self, until: datetime) -> None:
        """Ends runs one after another until this time."""
        while (following := min((at for _, at in self.running.values()), default=until)) < until:
            self.now = following
            for name, (run, at) in list(self.running.items()):
                if at <= self.now:
                    del self.running[name]
                    self.record_duration(run)
            self.run_cycle()
        self.now = until

    def record_duration(self, run: Running) -> None:
        if self.known != "unknown":
            took_s = (self.now - run.placed_at).total_seconds()
            self.durations = dict(self.durations)
            for key in history_keys(run.gang):
                self.durations[key] = (*self.durations.get(key, ()), took_s)[-MAX_DURATIONS:]


def times_the_shortest_wait(options: argparse.Namespace, known: str, seed: int) -> float:
    stream = Stream(options.gpus, options.takes, known, Random(seed))
    begun = NOW + timedelta(seconds=3 * options.takes)
    shortest: deque[float] = deque(maxlen=1)
    for number in range(int(20 * options.takes / options.every)):
        stream.run_until(NOW + timedelta(seconds=number * options.every))
        stream.submit(f"small{number:06}", 1, 1)
        if not shortest and stream.now >= begun:
            begun = stream.now
            shortest.append(max((at - begun).total_seconds() for _, at in stream.running.values()))
            stream.submit("large", options.gpus // 8, 8)
        stream.run_cycle()
        if GangId("large") in stream.running:
            started = stream.running[GangId("large")][0].placed_at
            return (started - begun).total_seconds() / shortest[0]
    return float("inf")


# as every benchmark
def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:  # noqa: ARG001
    settings = {name: getattr(options, name) for name in ("gpus", "takes", "every", "repeats")}
    report = Report(NAME, settings)
    for known in KNOWN:
        waits = [times_the_shortest_wait(options, known, seed) for seed in range(options.repeats)]
        report.add(known, "x", waits, "ratio", f"wait over the shortest possible; durations are {known}")
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "", repeats=3)
    parser.add_argument("--gpus", type=int, default=64, help="of the cluster, and of the gang")
    parser.add_argument("--takes", type=float, default=600.0, help="seconds that a run takes, more or less")
    parser.add_argument("--every", type=float, default=9.0, help="seconds between two small runs")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())

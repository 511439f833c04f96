"""Placements a second on a cluster that is nearly full, at 1,213 and at 10,000 nodes.

    python -m benchmarks.placements [--nodes 1213,10000] [--count 3000] [--shapes 60]

Nodes of 8 GPUs of four models; runs of one replica in some dozens of shapes (whole cards, shares, cores
alone) come until nine tenths of all cards are given, then each one that comes follows one that leaves. Timed:
giving back, finding a place by the default score, and taking it. Beside it, in the same rounds and with the
same runs, the same with no memory: every node is looked at for every run, by best fit, in a handful of
operations on whole columns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random

import numpy as np

from benchmarks.harness import Arguments, Report, alternate, main, ratio, say
from benchmarks.peers.find import PeerPython
from hopyard.domain.cluster import Node
from hopyard.domain.gang import ANY_NODE, Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.workload_mix import WorkloadMix

NAME = "placements"
GIB = 1 << 30
NOW = datetime(2030, 1, 1, tzinfo=UTC)
MODELS = (("A100", 96, 1024), ("V100", 64, 512), ("T4", 96, 384), ("P100", 48, 256))
FULL = 0.9


def cluster(count: int) -> list[Node]:
    found = []
    for number in range(count):
        model, cores, gib = MODELS[number * 7 % len(MODELS)]
        cards = tuple(Gpu(index, model, 32 * GIB) for index in range(8))
        found.append(Node(NodeId(f"n{number:05}"), "local", cores * 1000, gib * GIB, cards))
    return found


def shapes(count: int, chance: Random) -> list[Resources]:
    found: dict[Resources, None] = {}
    while len(found) < count:
        cards = chance.choice([0, 1, 1, 1, 2, 4, 8, -1, -1, -1])
        each = max(cards, 1) if cards else 1
        asked = Resources(
            each * chance.choice([1000, 2000, 4000, 6000, 8000]),
            each * chance.choice([4, 8, 16, 30]) * GIB,
            gpus=max(cards, 0),
            gpu_models=chance.choice([(), (), (), ("T4",), ("A100", "V100")]) if cards else (),
            gpu_milli=chance.choice([100, 250, 330, 500, 800]) if cards < 0 else 0,
        )
        found[asked] = None
    return list(found)


def gangs(kinds: Sequence[Resources], chance: Random, count: int) -> list[Gang]:
    return [Gang(GangId(f"g{i}"), (Role("worker", 1, chance.choice(kinds)),), NOW) for i in range(count)]


def allocated_milli(placement: Placement) -> int:
    return sum(len(assignment.gpus) * assignment.gpu_milli for assignment in placement.assignments)


class NearlyFullCluster:
    """A cluster filled with runs until it is nearly full."""

    def __init__(self, nodes: int, kinds: Sequence[Resources], seed: int) -> None:
        self.machines, self.chance = cluster(nodes), Random(seed)
        self.capacity, self.running = Capacity.of(self.machines), list[Placement]()
        self.capacity.update_weights(WorkloadMix.of([(one, ANY_NODE, 1) for one in kinds]))
        left = FULL * 8 * WHOLE_GPU * nodes
        while left > 0:
            for gang in gangs(kinds, self.chance, 1000):
                found = self.capacity.place(gang, score="first-fit")
                if found is not None and left > 0:
                    self.capacity.allocate(found)
                    self.running.append(found)
                    left -= allocated_milli(found)
        self.chance.shuffle(self.running)


def with_index(cluster_state: NearlyFullCluster, coming: Sequence[Gang]) -> float:
    """Runs tried a second."""
    capacity, leaving = cluster_state.capacity.copy(), iter(cluster_state.running)
    started = time.perf_counter()
    for gang in coming:
        capacity.release(next(leaving))
        found = capacity.place(gang)
        if found is not None:
            capacity.allocate(found)
    return len(coming) / (time.perf_counter() - started)


class Scan:
    """The columns of a cluster, scanned completely for every run."""

    def __init__(self, cluster_state: NearlyFullCluster) -> None:
        nodes = cluster_state.machines
        self.row = {node.id: row for row, node in enumerate(nodes)}
        self.model = np.array([node.gpus[0].model for node in nodes])
        self.cpu = np.array([node.cpu_milli for node in nodes])
        self.memory = np.array([node.memory_bytes for node in nodes])
        self.gpu = np.full((len(nodes), 8), WHOLE_GPU)
        for placement in cluster_state.running:
            self.use(
                placement.gang.roles[0].resources,
                self.row[placement.assignments[0].node],
                placement.assignments[0].gpus,
                1,
            )

    def use(self, request: Resources, row: int, cards: Sequence[int], sign: int) -> None:
        self.cpu[row] -= sign * request.cpu_milli
        self.memory[row] -= sign * request.memory_bytes
        self.gpu[row, list(cards)] -= sign * (request.gpu_milli or WHOLE_GPU)

    def place(self, request: Resources) -> tuple[int, tuple[int, ...]] | None:
        fits = (self.cpu >= request.cpu_milli) & (self.memory >= request.memory_bytes)
        if request.gpu_models:
            fits &= np.isin(self.model, request.gpu_models)
        need = request.gpu_milli or WHOLE_GPU
        if request.gpus or request.gpu_milli:
            fits &= (self.gpu >= need).sum(axis=1) >= max(request.gpus, 1)
        if not fits.any():
            return None
        left = self.gpu.sum(axis=1) / (8 * WHOLE_GPU) + self.cpu / 96000 + self.memory / (1024 * GIB)
        row = int(np.where(fits, left, np.inf).argmin())
        if not (request.gpus or request.gpu_milli):
            return row, ()
        cards = sorted((int(have), j) for j, have in enumerate(self.gpu[row]) if have >= need)
        return row, tuple(j for _, j in cards[: max(request.gpus, 1)])


def with_scan(cluster_state: NearlyFullCluster, coming: Sequence[Gang]) -> float:
    """Like `with_index`, by a scan of all nodes."""
    scan, leaving = Scan(cluster_state), iter(cluster_state.running)
    started = time.perf_counter()
    for gang in coming:
        gone = next(leaving)
        scan.use(
            gone.gang.roles[0].resources, scan.row[gone.assignments[0].node], gone.assignments[0].gpus, -1
        )
        request = gang.roles[0].resources
        found = scan.place(request)
        if found is not None:
            scan.use(request, *found, 1)
    return len(coming) / (time.perf_counter() - started)


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    del peers  # the peer is the scan: no other Python scheduler places on GPUs and shares of them
    report = Report(
        NAME,
        {
            "nodes": options.nodes,
            "count": options.count,
            "shapes": options.shapes,
            "repeats": options.repeats,
        },
    )
    kinds = shapes(options.shapes, Random(1))
    for nodes in options.nodes:
        say(f"filling {nodes} nodes")
        cluster_state = NearlyFullCluster(nodes, kinds, 2)
        coming = gangs(kinds, Random(3), min(options.count, len(cluster_state.running)))
        sides: dict[str, Callable[[], float]] = {
            "remembered": lambda cluster_state=cluster_state, coming=coming: with_index(
                cluster_state, coming
            ),  # type: ignore[misc]
            "scanned": lambda cluster_state=cluster_state, coming=coming: with_scan(
                cluster_state, coming[: max(1, len(coming) // 4)]
            ),  # type: ignore[misc]
        }
        found = alternate(options.repeats, sides)
        report.add(
            f"at_{nodes}",
            "runs/s",
            found["remembered"],
            note=f"{nodes} nodes: one leaves, one is placed and taken",
        )
        report.add(
            f"scan_{nodes}",
            "runs/s",
            found["scanned"],
            "bound",
            "best fit over every node, whole columns at a time",
        )
        report.measurements.append(ratio(f"over_scan_{nodes}", found["remembered"], found["scanned"]))
    return report


def _sizes(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is no list of numbers of nodes; write 1213,10000")
    return found


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument(
        "--nodes", type=_sizes, default=[1213, 10000], metavar="N[,N…]", help="sizes of clusters"
    )
    parser.add_argument("--count", type=int, default=3000, help="runs that come in a round")
    parser.add_argument("--shapes", type=int, default=60, help="different requests")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())

"""Cerebro's scheduler simulation: the makespan of one epoch of model hopper parallelism over the open-shop
bound.

    python -m benchmarks.mop_makespan [--configs N] [--workers N] [--kind homogeneous|cnn|lognormal] [--seeds
        20] [--unknown-times] [--json]

The real coordinator is played with unit times of cost / speed. homogeneous: all equal. cnn: costs drawn with
replacement from the list of `--costs` (GFLOPs of 35 CNNs), speeds from 12.1, 5.6, 11.3, 18.7 TFLOPS.
lognormal: costs with sigma 1, speeds with 0.5. With --unknown-times the coordinator learns them from the hops
that end. A line per case: mean and max over seeds of makespan over bound, and the median milliseconds that
all decisions of one epoch took together.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import Event, Instruction
from hopyard.mop.makespan import makespan_lower_bound, simulate_epoch

CONFIGS, WORKERS, KINDS = (16, 32, 64, 256), (8, 16, 64), ("homogeneous", "cnn", "lognormal")
TFLOPS = (12.1, 5.6, 11.3, 18.7)
COSTS = Path(__file__).resolve().parents[2] / "shared" / "traces" / "mop"


@dataclass(frozen=True, slots=True)
class Case:
    configs: int
    workers: int
    kind: str
    seeds: int
    unknown_times: bool


class Timed:
    """A coordinator that knows how long its decisions took."""

    def __init__(self, partitions: int) -> None:
        self._inner = MopCoordinator(PartitionId(i) for i in range(partitions))
        self.seconds = 0.0

    def handle(self, *events: Event) -> list[Instruction]:
        began = time.perf_counter()
        said = self._inner.handle(*events)
        self.seconds += time.perf_counter() - began
        return said


def measure(case: Case, gflops: Sequence[float]) -> dict[str, object]:
    ratios, decided = [], []
    for seed in range(case.seeds):
        costs, speeds = draw(case, gflops, random.Random(seed))
        coordinator = Timed(case.workers)
        took = simulate_epoch(coordinator, costs, speeds, known_times=not case.unknown_times)
        ratios.append(took / makespan_lower_bound(costs, speeds))
        decided.append(coordinator.seconds * 1000)
    return {
        **asdict(case),
        "mean": statistics.fmean(ratios),
        "max": max(ratios),
        "decide_ms": statistics.median(decided),
    }


def draw(
    case: Case, gflops: Sequence[float], chance: random.Random
) -> tuple[dict[TrialId, float], dict[WorkerId, float]]:
    if case.kind == "homogeneous":
        costs, speeds = [1.0] * case.configs, [1.0] * case.workers
    elif case.kind == "cnn":
        costs, speeds = chance.choices(gflops, k=case.configs), chance.choices(TFLOPS, k=case.workers)
    else:
        costs = [chance.lognormvariate(0, 1) for _ in range(case.configs)]
        speeds = [chance.lognormvariate(0, 0.5) for _ in range(case.workers)]
    return (
        {TrialId(f"trial{at:04d}"): cost for at, cost in enumerate(costs)},
        {WorkerId(f"worker{at:04d}"): speed for at, speed in enumerate(speeds)},
    )


def read_costs(path: Path) -> list[float]:
    """Raises SystemExit if there is no list of GFLOPs."""
    files = [path] if path.is_file() else sorted(path.glob("*.csv"))
    if not files:
        raise SystemExit(
            f"error: no list of costs at {path}\nhint: name a CSV file with a column `gflops`: --costs FILE"
        )
    with files[0].open(newline="") as rows:
        try:
            return [float(row["gflops"]) for row in csv.DictReader(rows)]
        except (KeyError, ValueError) as bad:
            raise SystemExit(f"error: {files[0]} has no column `gflops` of numbers: {bad}") from bad


def run(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--configs",
        type=int,
        nargs="*",
        default=CONFIGS,
        help="numbers of configurations (default: the whole grid)",
    )
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--unknown-times", action="store_true", help="the coordinator learns times from hops that end"
    )
    parser.add_argument(
        "--costs", type=Path, default=COSTS, help="CSV with a column gflops, or a folder with one"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    if min([*given.configs, *given.workers, given.seeds]) < 1:
        parser.error("--configs, --workers and --seeds are at least 1")
    gflops = read_costs(given.costs) if "cnn" in given.kind else []
    for kind in given.kind:
        for configs in given.configs:
            for workers in given.workers:
                case = Case(
                    configs, workers, kind, 1 if kind == "homogeneous" else given.seeds, given.unknown_times
                )
                found = measure(case, gflops)
                said = (
                    json.dumps(found)
                    if given.json
                    else (
                        "{kind:12} {configs:4} x {workers:3}  mean {mean:.4f}  max {max:.4f}  decided "
                        "in {decide_ms:.1f} ms"
                    ).format_map(found)
                )
                print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run())

"""GPU allocation on Alibaba's openb cluster, and decisions a second: one line of JSON a seed.

    python -m benchmarks.openb --nodes FILE --pods FILE --seeds 42-51 [--shuffle-nodes] [--policy NAME] --json

The protocol of "Beware of Fragmentation" (USENIX ATC'23): the list is shuffled with the seed, then pods drawn
from it are appended until 1.3 times the cluster's GPUs are asked for. One pod is placed at a time, is tried
once, and never leaves. allocated_at_100 (130): thousandths of GPUs that are allocated when those asked for so
far reach 100% (130%) of the cluster's. decisions_per_s: pods tried, placed or not, over the seconds from the
first to the last, on one core, with all that the scheduler does for them: the mix of shapes that it keeps
room for is made of the pods that have come so far.
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
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import print_error
from hopyard.domain.cluster import Node
from hopyard.domain.gang import ANY_NODE, Gang, Role
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources
from hopyard.errors import HopyardError, SpecError
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.score_rules import FRAGMENTATION_SCORES, SCORES
from hopyard.scheduler.placement.workload_mix import ReplicaShape, WorkloadMix

MIB = 1 << 20
ASKED_IN_ALL = 1.3
GROWTH = 1.2  # the mix is recomputed when the number of pods has grown by this factor
SUBMITTED = datetime(2023, 7, 10, tzinfo=UTC)
DEFAULT = "fragmentation"


@dataclass(frozen=True, slots=True)
class Line:
    """The printed figures of one seed."""

    policy: str
    seed: int
    allocated_at_100: float
    allocated_at_130: float
    decisions_per_s: float


def read_nodes(path: Path) -> list[Node]:
    """Columns sn, cpu_milli, memory_mib, gpu, model."""
    nodes = []
    for line, row in _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        where = f"{path}:{line}"
        cards = tuple(Gpu(i, row["model"] or "GPU") for i in range(_number(row, "gpu", where)))
        memory = _number(row, "memory_mib", where) * MIB
        nodes.append(Node(NodeId(row["sn"]), "openb", _number(row, "cpu_milli", where), memory, cards))
    if len({node.id for node in nodes}) < len(nodes):
        raise SpecError(f"{path}: two nodes have the same name", hints=("each `sn` must stand there once",))
    if not any(node.gpus for node in nodes):
        raise SpecError(f"{path}: no node has a GPU", hints=("`gpu` says how many a node has",))
    return nodes


def read_pods(path: Path) -> list[Resources]:
    """Columns cpu_milli, memory_mib, num_gpu, gpu_milli, and gpu_spec where the list has it."""
    pods = []
    for line, row in _rows(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        where = f"{path}:{line}"
        count, milli = _number(row, "num_gpu", where), _number(row, "gpu_milli", where)
        if (count > 1 and milli != WHOLE_GPU) or (count and not 1 <= milli <= WHOLE_GPU):
            raise SpecError(
                f"{where}: {count} GPUs of {milli} thousandths each",
                hints=("a pod asks for whole GPUs or for a share of one",),
            )
        share = count == 1 and milli < WHOLE_GPU
        models = (
            tuple(dict.fromkeys(model for model in (row.get("gpu_spec") or "").split("|") if model))
            if count
            else ()
        )
        pods.append(
            Resources(
                _number(row, "cpu_milli", where),
                _number(row, "memory_mib", where) * MIB,
                gpus=0 if share else count,
                gpu_models=models,
                gpu_milli=milli if share else 0,
            )
        )
    return pods


def _rows(path: Path, needed: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise SpecError(
                    f"{path}: no column `{missing[0]}`", hints=(f"it must have {', '.join(needed)}",)
                )
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise SpecError(f"{path}: holds no line beside the names of its columns")
    return rows


def _number(row: dict[str, str], name: str, where: str) -> int:
    text = row[name] or ""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 40:
        raise SpecError(f"{where}: {name}: `{text}` is no whole number of at least 0")
    return value


def gpu_milli(request: Resources) -> int:
    """Returns the thousandths of GPUs that one pod requests."""
    return request.gpu_milli or WHOLE_GPU * request.gpus


def sequence(pods: Sequence[Resources], seed: int, total: int) -> list[Resources]:
    """Returns the pods in order of arrival."""
    chance = random.Random(seed)
    found = list(pods)
    chance.shuffle(found)
    asked = sum(map(gpu_milli, found))
    if not asked:
        raise SpecError("no pod asks for a GPU", hints=("the list must hold some that do",))
    while asked < ASKED_IN_ALL * total:
        found.append(chance.choice(pods))
        asked += gpu_milli(found[-1])
    return found


def replay(nodes: Sequence[Node], pods: Sequence[Resources], policy: str, seed: int) -> Line:
    """Places one pod after another."""
    total = WHOLE_GPU * sum(len(node.gpus) for node in nodes)
    gangs = [
        Gang(GangId(str(i)), (Role("pod", 1, request),), SUBMITTED)
        for i, request in enumerate(sequence(pods, seed, total))
    ]
    capacity, seen = Capacity.of(nodes), dict[ReplicaShape, int]()
    asked = allocated = decisions = 0
    reached: dict[float, float] = {}
    learn_at = 1.0
    started = time.perf_counter()
    for gang in gangs:
        request = gang.roles[0].resources
        asked += gpu_milli(request)
        key = request, ANY_NODE
        seen[key] = seen.get(key, 0) + 1
        decisions += 1
        if decisions >= learn_at:
            capacity.update_weights(WorkloadMix.of(seen))
            learn_at = decisions * GROWTH
        placement = capacity.place(gang, score=policy)
        if placement is not None:
            capacity.allocate(placement)
            allocated += gpu_milli(request)
        for part in (1.0, ASKED_IN_ALL):
            if part not in reached and asked >= part * total:
                reached[part] = 100 * allocated / total
        if len(reached) == 2:
            break
    seconds = time.perf_counter() - started
    return Line(
        policy, seed, round(reached[1.0], 4), round(reached[ASKED_IN_ALL], 4), round(decisions / seconds, 1)
    )


def seeds(text: str) -> list[int]:
    """ "42-51" or "1,5,7-9"."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found += range(int(first), int(last if dash else first) + 1)
    except ValueError:
        found = []
    if not found:
        raise argparse.ArgumentTypeError(f"`{text}` is no list of seeds; write 42-51 or 1,5,7-9")
    return found


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.openb",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--nodes",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV with sn, cpu_milli, memory_mib, gpu, model",
    )
    parser.add_argument(
        "--pods",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV with cpu_milli, memory_mib, num_gpu, gpu_milli and perhaps gpu_spec",
    )
    parser.add_argument("--seeds", type=seeds, default=seeds("42-51"), help="as 42-51 or 1,5,7-9")
    parser.add_argument(
        "--shuffle-nodes", action="store_true", help="shuffle the order of the nodes with each seed"
    )
    parser.add_argument(
        "--policy",
        choices=sorted({*FRAGMENTATION_SCORES, *SCORES}),
        default=DEFAULT,
        help=f"how nodes are scored (default: {DEFAULT}, ours)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    try:
        nodes, pods = read_nodes(options.nodes), read_pods(options.pods)
        lines = []
        for number, seed in enumerate(options.seeds, start=1):
            if sys.stderr.isatty():
                print(
                    f"\rseed {seed} ({number} of {len(options.seeds)})", end="", file=sys.stderr, flush=True
                )
            order = list(nodes)
            if options.shuffle_nodes:
                random.Random(seed).shuffle(order)
            lines.append(replay(order, pods, options.policy, seed))
            if options.json:
                print(json.dumps(asdict(lines[-1])), flush=True)
    except HopyardError as error:
        return print_error(error)
    finally:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
    if not options.json:
        print(table(lines))
    return 0


def table(lines: Sequence[Line]) -> str:
    rows = [
        (
            f"{line.policy:>16} {line.seed:>6} {line.allocated_at_100:9.2f} {line.allocated_at_130:9.2f} "
            f"{line.decisions_per_s:12,.0f}"
        )
        for line in lines
    ]
    mean = [
        statistics.fmean(getattr(line, name) for line in lines)
        for name in ("allocated_at_100", "allocated_at_130")
    ]
    median = statistics.median(line.decisions_per_s for line in lines)
    head = f"{'policy':>16} {'seed':>6} {'at 100%':>9} {'at 130%':>9} {'decisions/s':>12}"
    return "\n".join(
        [head, *rows, f"{'mean, median':>16} {'':>6} {mean[0]:9.2f} {mean[1]:9.2f} {median:12,.0f}"]
    )


if __name__ == "__main__":
    raise SystemExit(run())

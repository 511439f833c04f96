"""The sides of benchmarks.mop_study: the same configurations, rows and epochs, trained by model hopper
parallelism and by its peers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.local_server import LocalServer, hop_command
from benchmarks.peers.find import PeerPython
from benchmarks.peers.ray_jobs import end_session
from benchmarks.study_cases import CODE, Case
from benchmarks.study_journal import Units
from hopyard.client.study_lookup import get_study, read_journal

_PEERS = Path(__file__).with_name("peers")
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one side in one round.

    span_s: from the first assignment of work, with all modules imported, to the end of the last worker;
    includes reading data. wall_s: from the start of the first process to the end of the last. accuracies: of
    each configuration after its last epoch. data_bytes, grown_bytes: of the worker with the largest memory:
    its arrays of data; its anonymous memory since it was ready. storage_bytes: disk space of the data of all
    workers. more: figures of this side only.
    """

    span_s: float
    wall_s: float
    accuracies: Sequence[float]
    data_bytes: float
    grown_bytes: float
    storage_bytes: float
    more: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """The parameters of one round of a side. folder: of this round, empty.
    data: the folder of the case's data. seed: of this round."""

    case: Case
    data: Path
    folder: Path
    workers: int
    seed: int

    def order(self, **more: Any) -> str:
        """For the programs in benchmarks/peers, as JSON."""
        said = {"networks": str(CODE / "networks.py"), "model": self.case.name, "data": str(self.data)}
        return json.dumps({**said, "epochs": self.case.epochs, "seed": self.seed, **more})


def run_mop(turn: Turn, server: LocalServer) -> Outcome:
    """`hop search search.yaml`, the dataset pushed before."""
    code = turn.folder / "code"
    turn.case.write_code(code, workers=turn.workers, seed=turn.seed)
    indexes = server.home.root / "partitions"
    earlier = disk_bytes(indexes)  # of rounds with other seeds
    began = time.time()
    _call([*hop_command(), "search", "search.yaml"], cwd=code, env={**server.environment, **_THREADS})
    ended = time.time()
    units = Units.of(read_journal(server.client, get_study(server.client, "")))
    accuracies = [units.last("val_acc", config) for config in turn.case.configs]
    trees = [
        found
        for found in (server.home.root / "cache" / "trees").iterdir()
        if (found / "train" / "x.npy").exists()
    ]
    return Outcome(
        span_s=units.span_s,
        wall_s=ended - began,
        accuracies=accuracies,
        data_bytes=units.most("data_bytes"),
        grown_bytes=units.most("grown_bytes"),
        storage_bytes=disk_bytes(max(trees, key=disk_bytes)) + disk_bytes(indexes) - earlier,
        more={"startup_s": units.began_at - began, **units.shares(), **units.seconds()},
    )


def full_copies(turn: Turn) -> Outcome:
    """Task parallelism: each free worker takes the next configuration, and trains it on its own copy of the
    data."""
    copies = [turn.folder / f"copy-{number}" for number in range(turn.workers)]
    for copy in copies:
        shutil.copytree(turn.data, copy)
    began = time.time()
    waiting, told = deque(enumerate(turn.case.configs)), dict[int, dict[str, Any]]()
    with ExitStack() as entered:
        workers = [
            entered.enter_context(
                _program([sys.executable, _PEERS / "in_study.py", "copies", turn.order(data=str(copy))])
            )
            for copy in copies
        ]
        for worker in workers:
            _answer(worker)  # it has imported everything

        def work(worker: subprocess.Popen[str]) -> None:
            while waiting:
                try:
                    number, config = waiting.popleft()
                except IndexError:
                    return
                _stream(worker.stdin).write(json.dumps(config) + "\n")
                _stream(worker.stdin).flush()
                told[number] = _answer(worker)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ended = time.time()
    if len(told) < len(turn.case.configs):
        raise RuntimeError("a worker with a full copy broke")
    all_told = [told[number] for number in sorted(told)]
    return Outcome(
        span_s=max(one["ended_at"] for one in all_told) - min(one["began_at"] for one in all_told),
        wall_s=ended - began,
        accuracies=[one["accuracy"] for one in all_told],
        data_bytes=max(one["data_bytes"] for one in all_told),
        grown_bytes=max(one["grown_bytes"] for one in all_told),
        storage_bytes=sum(map(disk_bytes, copies)),
        more={name: sum(one[name] for one in all_told) for name in ("train_s", "evaluate_s")},
    )


def ddp(turn: Turn, *, wide: bool) -> Outcome:
    """torchrun on this machine, one configuration after another on all workers.
    wide: complete batches for each of them."""
    out = turn.folder / "ddp.json"
    order = turn.order(configs=turn.case.configs, wide=wide, out=str(out))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={turn.workers}",
    ]
    began = time.time()
    _call(
        [*command, str(_PEERS / "in_study.py"), "ddp", order], cwd=turn.folder, env={**os.environ, **_THREADS}
    )
    return _read(out, time.time() - began, disk_bytes(turn.data))


def tune(turn: Turn, peers: PeerPython) -> Outcome:
    """Ray Tune, with one concurrent trial per worker."""
    out = turn.folder / "tune.json"
    folder = turn.folder / "ray"
    folder.mkdir()
    order = turn.order(configs=turn.case.configs, workers=turn.workers, out=str(out), folder=str(folder))
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(_PEERS)}
    began = time.time()
    _call(
        [str(peers.executable), str(_PEERS / "in_tune.py"), order],
        cwd=turn.folder,
        env={**os.environ, **_THREADS, **settings},
    )
    return _read(out, time.time() - began, disk_bytes(turn.data))


def _read(out: Path, wall_s: float, storage: float) -> Outcome:
    told = json.loads(out.read_text())
    return Outcome(
        told["ended_at"] - told["began_at"],
        wall_s,
        told["accuracies"],
        told["data_bytes"],
        told.get("grown_bytes", 0.0),
        storage,
    )


def disk_bytes(folder: Path) -> int:
    """Returns the disk space of the files below the folder, each counted once."""
    found = {
        (stat.st_dev, stat.st_ino): stat.st_blocks * 512
        for path in folder.rglob("*")
        if path.is_file()
        for stat in (path.stat(),)
    }
    return sum(found.values())


def _call(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
    """Runs the command to its end and the end of its child processes.
    Raises RuntimeError with its last output if it fails."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            end_session(process)
        if code:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)[:200]}: exit {code}\n{said.read()[-3000:]}")


@contextmanager
def _program(command: Sequence[Any]) -> Iterator[subprocess.Popen[str]]:
    """Ended by the end of its stdin, or by pid where that does not end it."""
    process = subprocess.Popen(
        list(map(str, command)),
        env={**os.environ, **_THREADS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        _stream(process.stdin).close()
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
        _stream(process.stdout).close()


def _stream(given: IO[str] | None) -> IO[str]:
    assert given is not None
    return given


def _answer(worker: subprocess.Popen[str]) -> dict[str, Any]:
    line = _stream(worker.stdout).readline()
    if not line:
        raise RuntimeError(f"a worker with a full copy ended with {worker.wait()}")
    return dict(json.loads(line))

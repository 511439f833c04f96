"""Runs in the peers' environment: `in_loggers.py PEER FOLDER CALLS POINTS HISTORY` logs and prints its
timings as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def timed(count: int, call: Any) -> float:
    """Microseconds a call."""
    started = time.perf_counter()
    for i in range(count):
        call(i)
    return (time.perf_counter() - started) / count * 1e6


def tensorboardx(folder: Path, calls: int, points: int, history: int) -> dict[str, float]:
    del history  # it only writes
    from tensorboardX import SummaryWriter

    def three(writer: Any, i: int) -> None:
        writer.add_scalar("loss", 0.5, i)
        writer.add_scalar("accuracy", 0.5, i)
        writer.add_scalar("rate", 0.5, i)

    writer = SummaryWriter(str(folder / "calls"))
    found = {
        "one": timed(calls, lambda i: writer.add_scalar("one", 0.5, i)),
        "three": timed(calls, lambda i: three(writer, i)),
    }
    writer.close()
    writer = SummaryWriter(str(folder / "points"))
    started = time.perf_counter()
    for i in range(points // 3):
        three(writer, i)
    writer.close()
    return {**found, "durable": points // 3 * 3 / (time.perf_counter() - started)}


def trackio(folder: Path, calls: int, points: int, history: int) -> dict[str, float]:
    os.environ.update(TRACKIO_DIR=str(folder), HF_HUB_OFFLINE="1")
    import trackio as peer
    from trackio.sqlite_storage import SQLiteStorage

    def three(i: int) -> None:
        peer.log({"loss": 0.5, "accuracy": 0.5, "rate": 0.5}, step=i)

    quiet: dict[str, Any] = {"auto_log_gpu": False}
    peer.init(project="bench", name="calls", **quiet)
    found = {"one": timed(calls, lambda i: peer.log({"one": 0.5}, step=i)), "three": timed(calls, three)}
    peer.finish()
    peer.init(project="bench", name="points", **quiet)
    started = time.perf_counter()
    for i in range(points // 3):
        three(i)
    peer.finish()
    found["durable"] = points // 3 * 3 / (time.perf_counter() - started)
    peer.init(project="bench", name="history", **quiet)
    for i in range(history):
        peer.log({"loss": 1.0 / (i + 1)}, step=i)
    peer.finish()
    started = time.perf_counter()
    back = SQLiteStorage.get_logs("bench", "history")  # the reader of its dashboard
    found["read_back"] = (time.perf_counter() - started) * 1000
    if len(back) != history:
        raise RuntimeError(f"trackio gave {len(back)} points back, not {history}")
    return found


def mlflow(folder: Path, calls: int, points: int, history: int) -> dict[str, float]:
    import mlflow as peer
    from mlflow.entities import Metric

    peer.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    peer.set_experiment("bench")
    client, batch = peer.MlflowClient(), 1000

    def send(run: str, names: tuple[str, ...], count: int) -> None:
        now = int(time.time() * 1000)
        every = [Metric(name, 0.5, now, i) for i in range(count // len(names)) for name in names]
        for first in range(0, len(every), batch):
            client.log_batch(run, every[first : first + batch])

    with peer.start_run() as run:
        few = max(20, calls // 10)  # a call is a commit of its own: milliseconds
        found = {"one": timed(few, lambda i: peer.log_metric("one", 0.5, step=i))}
        found["three"] = timed(
            few, lambda i: peer.log_metrics({"loss": 0.5, "accuracy": 0.5, "rate": 0.5}, step=i)
        )
        identity = run.info.run_id
    with peer.start_run() as run:
        started = time.perf_counter()
        send(run.info.run_id, ("loss", "accuracy", "rate"), points)
        found["durable"] = points // 3 * 3 / (time.perf_counter() - started)
    send(identity, ("history",), history)
    started = time.perf_counter()
    back = client.get_metric_history(identity, "history")
    found["read_back"] = (time.perf_counter() - started) * 1000
    if len(back) != history:
        raise RuntimeError(f"MLflow gave {len(back)} points back, not {history}")
    return found


if __name__ == "__main__":
    which = {"tensorboardX": tensorboardx, "trackio": trackio, "mlflow": mlflow}[sys.argv[1]]
    print(json.dumps(which(Path(sys.argv[2]), *map(int, sys.argv[3:6]))), flush=True)

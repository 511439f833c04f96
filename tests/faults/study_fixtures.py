"""Scripts and specs of the studies in these tests, and readers of their journals."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil

from hopyard.studies.journal import read_records

from .server_home import ServerHome, wait_until

TRAIN_SCRIPT = """
import math, time
import hopyard as hop

p = hop.params(lr=0.1, width=8, epochs=1)
state = {"done": 0}
hop.bind(state=state)
for epoch in hop.loop(range(p.epochs)):
    time.sleep(0.03)
    state["done"] += 1
    hop.log(acc=1 - abs(math.log10(p.lr) + 2) / 5 + 0.01 * state["done"] + 0.001 * p.width, step=epoch)
"""
SEARCH = """
name: toy
metric: acc
goal: max
searcher: {name: asha, eta: 2}
trials: 5
concurrent: 1
epochs: 4
seed: 5
space:
  lr: loguniform(1e-4, 1e-1)
  width: [4, 8, 16]
script: train.py
resources: {cpus: 0.2}
"""
TRAINABLE = """
import time
import numpy as np
def init(config): return {"w": np.zeros(4)}
def train(state, partition, config):
    time.sleep(0.15)
    x, y = partition["x"], partition["y"]
    w = state["w"]
    for at in range(0, len(x), 32):
        a, b = x[at : at + 32], y[at : at + 32]
        w = w - config["lr"] * a.T @ (a @ w - b) / len(a)
    return {"w": w}
def evaluate(state, partition, config):
    return {"loss": float(((partition["x"] @ state["w"] - partition["y"]) ** 2).mean())}
"""
MOP = """
name: linear
metric: loss
parallel: mop
searcher: random
trials: 4
epochs: 4
seed: 3
space: {lr: "loguniform(1e-3, 1e-1)"}
trainable: linear.py
workers: 2
dataset: linear
partitions: {validation: 0.2}
resources: {cpus: 0.5}
"""


def push_mop_study(server_home: ServerHome) -> None:
    """Writes the code of `MOP` and pushes its dataset."""
    random = np.random.default_rng(0)
    x = random.normal(size=(800, 4))
    (server_home.folder / "data").mkdir()
    np.savez(server_home.folder / "data" / "table.npz", x=x, y=x @ np.array([1.0, -2.0, 3.0, 0.5]))
    server_home.write("linear.py", TRAINABLE)
    server_home.ok("dataset", "push", "linear", "data")


def read_journal(server_home: ServerHome, run: Any) -> list[dict[str, Any]]:
    def read(client: Any) -> bytes:
        with client.open("GET", f"/runs/{run['id']}/journal") as response:
            return bytes(response.read())

    return list(read_records(server_home.retry_while_unavailable(read)))


def search_decisions(records: list[dict[str, Any]]) -> list[Any]:
    """Returns the proposals, reports and verdicts in order."""
    return [
        record.get("answer") or (record["report"], record["verdict"])
        for record in records
        if record["kind"] in ("asked", "told")
    ]


def start_study(server_home: ServerHome) -> Any:
    return server_home.run(server_home.ok("search", "search.yaml", "--detach").stdout.strip())


def wait_for_process(server_home: ServerHome, run: Any, role: str) -> int:
    """Returns the pid of one process of a study once it runs, or 0 when the study has ended."""

    def found() -> list[int]:
        now = server_home.run(run["id"])
        if now["phase"] in ("succeeded", "failed", "cancelled"):
            return [0]
        if role == "server":
            return [server_home.server_pid()] if server_home.server_pid() else []
        if now["phase"] != "running":
            return []
        state = server_home.replica_status(now)
        if role == "replica":
            return [state["pid"]]
        if role == "parent":
            return [state["child_pid"]]
        try:
            return [
                child.pid
                for child in psutil.Process(state["child_pid"]).children()
                if "hopyard.study_app.driver_main" in child.cmdline()
            ]
        except psutil.Error:
            return []

    return wait_until(found, f"the {role}")[0]

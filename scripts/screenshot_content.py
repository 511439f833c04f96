"""Real content for the pictures of the web UI: a server, runs, a study, a dataset, a report, queues."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect
from hopyard.config.home import Home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell, wait_until

SETTINGS = """
nodes:
  - {id: gpu-01, cpus: 16, memory: 64G, gpus: A100:8, gpu_memory: 80G}
  - {id: gpu-02, cpus: 16, memory: 64G, gpus: A100:8, gpu_memory: 80G}
  - {id: gpu-03, cpus: 16, memory: 64G, gpus: L4:4, gpu_memory: 24G}
"""
TRAIN = r"""
import csv
import math
import random
import struct
import time
import zlib
from pathlib import Path

import hopyard as hop

p = hop.params(lr=0.001, optimizer="adam", batch_size=64, epochs=12, width=128, live=0)
chance = random.Random(f"{p.lr} {p.optimizer} {p.width}")
quality = math.exp(-abs(math.log10(p.lr) + 2.7)) * (1.0 if p.optimizer == "adam" else 0.93)


def png(side, shade):
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes(shade(x, y) for x in range(side)) for y in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    data = part(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + data + part(b"IEND", b"")


def ring(radius):
    return lambda x, y: int(255 * math.exp(-((math.hypot(x - 32, y - 32) - radius) / 4) ** 2))


print(f"\x1b[1mtraining\x1b[0m on 60,000 digits with \x1b[36m{p.optimizer}\x1b[0m, lr {p.lr}")
STEPS = 40
for epoch in hop.loop(range(p.epochs)):
    for at in range(STEPS):
        step = epoch * STEPS + at
        done = step / (12 * STEPS)
        loss = 0.04 + 2.2 * math.exp(-5 * done * quality) * (1 + chance.gauss(0, 0.06)) + 0.2 * (1 - quality)
        hop.log(train_loss=loss, learning_rate=p.lr * 0.5 * (1 + math.cos(math.pi * done)), step=step)
    acc = quality * (0.985 - 0.55 * math.exp(-5 * (epoch + 1) / 12)) + chance.gauss(0, 0.003)
    hop.log(val_acc=acc, val_loss=2.3 * (1 - acc), epoch=epoch, step=step)
    if epoch % 3 == 0:
        hop.log(weights=hop.Histogram([chance.gauss(0, 1 / (epoch + 1)) for _ in range(500)]), step=step)
        samples = [hop.Image(png(64, ring(6 + 3 * n + epoch)), caption=f"digit {n}") for n in range(6)]
        hop.log(samples=samples, step=step)
        rows = [[f"test/{chance.randrange(10000):05}.png", n, chance.randrange(10)] for n in range(10)]
        hop.log(errors=hop.Table(rows, columns=["file", "label", "guess"]), step=step)
        hop.save(step)
    print(f"epoch {epoch + 1:2}/{p.epochs}  loss {loss:.4f}  val_acc {acc:.4f}", flush=True)
    time.sleep(5.0 if p.live else 0)
Path("predictions.csv").write_text("file,label,score\n" + "".join(
    f"test/{n:05}.png,{n % 10},{0.5 + n % 50 / 100}\n" for n in range(300)))
Path("confusion.png").write_bytes(png(64, lambda x, y: 230 if x // 7 == y // 7 else 30))
Path("summary.md").write_text(f"# Result\n\nAccuracy **{acc:.4f}** after {p.epochs} epochs.\n")
print("\x1b[32mdone\x1b[0m")
hop.summary(val_acc=acc)
"""
DIVERGE = r"""
import math
import hopyard as hop

p = hop.params(lr=3.0)
for step in range(40):
    loss = 2.3 * math.exp(0.1 * step * p.lr / 3)
    hop.log(train_loss=loss, step=step)
    print(f"step {step}  loss {loss:.3f}")
hop.alert("the loss grows since step 5", title="diverged", level="error")
print("\x1b[31mloss is not finite\x1b[0m")
raise FloatingPointError("the loss is not finite at step 40: lower `lr`")
"""
TUNE = """
import math
import hopyard as hop

p = hop.params(lr=0.01, width=64, optimizer="adam", dropout=0.1, epochs=1)
best = 0.97 - 0.08 * abs(math.log10(p.lr) + 2.5) - 0.1 * abs(p.dropout - 0.2)
best += 0.01 * math.log2(p.width / 64) - (0.03 if p.optimizer == "sgd" else 0)
for epoch in range(p.epochs):
    hop.log(val_acc=best - 0.5 * math.exp(-0.7 * (epoch + 1)), step=epoch + 1)
"""
STUDY = """
name: mnist-asha
metric: val_acc
goal: max
searcher: asha
trials: {trials}
epochs: 9
concurrent: 8
seed: 1
space:
  lr: loguniform(0.0001, 0.3)
  width: [64, 128, 256]
  dropout: uniform(0, 0.5)
  optimizer: [adam, sgd]
script: tune.py
resources: {{gpus: 1, cpus: 1}}
"""
QUEUES = """
default: vision
queues:
  research:
    queues:
      vision: {guarantee: {gpus: 8}, weight: 2}
      speech: {guarantee: {gpus: 4}}
  students: {maximum: {gpus: 4}}
"""
NOTES = "Baseline of the course. Keep it: the report refers to it."
RUNS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("baseline", {}),
    ("adam-fast", {"lr": 0.01}),
    ("adam-slow", {"lr": 0.0002}),
    ("sgd", {"lr": 0.01, "optimizer": "sgd"}),
    ("sgd-slow", {"lr": 0.001, "optimizer": "sgd"}),
    ("wide", {"width": 512, "lr": 0.003}),
    ("narrow", {"width": 32}),
    ("short", {"epochs": 4, "lr": 0.003}),
)


@dataclass
class Content:
    """What the pages of the pictures show. runs: ids of ended runs on the dataset, oldest first."""

    runs: list[str] = field(default_factory=list)
    failed: str = ""
    live: str = ""
    waiting: str = ""
    study: str = ""
    report: str = ""
    folder: Path = Path()


def png(side: int, number: int) -> bytes:
    """Returns a grey picture of `side` pixels: rings that depend on the number."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = b"".join(
        b"\0" + bytes(((x - 32) ** 2 + (y - 32) ** 2) * (number + 1) // 8 % 256 for x in range(side))
        for y in range(side)
    )
    head = part(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(pixels)) + part(b"IEND", b"")


def push_datasets(shell: Shell, folder: Path) -> None:
    """Pushes `mnist-raw`, and two versions of `mnist` that derive from it."""
    for number in range(60):
        (folder / "train" / str(number % 3)).mkdir(parents=True, exist_ok=True)
        (folder / "train" / str(number % 3) / f"{number:05}.png").write_bytes(png(64, number))
    (folder / "labels.csv").write_text(
        "file,label,source\n" + "".join(f"train/{n:05}.png,{n % 10},scan {n % 4}\n" for n in range(5000))
    )
    (folder / "README.md").write_text("# Digits\n\nScanned digits, 64 × 64 pixels, one folder per class.\n")
    (folder / "classes.json").write_text('{"classes": ["zero", "one", "two"], "pixels": 64}\n')
    submit(shell, "dataset", "push", "mnist-raw", str(folder), "-m", "as scanned")
    submit(shell, "dataset", "push", "mnist", str(folder), "--metric", "val_acc", "--from", "mnist-raw:1")
    (folder / "train" / "0" / "99999.png").write_bytes(png(64, 99))
    submit(shell, "dataset", "push", "mnist", str(folder), "-m", "one more zero", "--from", "mnist-raw:1")


def submit(shell: Shell, *words: str) -> str:
    result = shell.hop(*words)
    assert result.code == 0, result.stderr_text
    return result.text.strip()


def shell_of(user: str, owner: Shell, client: Client, folder: Path) -> Shell:
    """Adds a user and returns a shell of theirs, with the code of the owner."""
    token = str(client.create_user({"name": user})["token"])
    (folder / "mnist").mkdir(parents=True)
    variables = {"HOPYARD_URL": client.url, "HOPYARD_TOKEN": token}
    shell = Shell(folder / "mnist", owner.environment | variables)
    shell.write("train.py", TRAIN)
    return shell


def make_report(client: Client, ids: list[str]) -> str:
    blocks: list[Any] = [
        {
            "type": "text",
            "text": "## Which rate?\n\nThe loss of a step is $L(\\theta) = \\frac{1}{n}\\sum_i \\ell_i$. "
            "*Adam* is better at **every** rate.\n\n- one node\n- 12 epochs",
        },
        {"type": "curves", "title": "Accuracy", "runs": ids, "metrics": ["val_acc"]},
        {
            "type": "table",
            "runs": ids,
            "columns": ["name", "params.lr", "params.optimizer", "metrics.val_acc"],
        },
        {"type": "scatter", "runs": ids, "x": "params.lr", "y": "metrics.val_acc"},
        {"type": "parallel", "runs": ids, "columns": ["params.lr", "params.width", "metrics.val_acc"]},
        {"type": "media", "runs": ids[:3], "names": ["samples"], "steps": []},
        {"type": "leaderboard", "dataset": "mnist", "metric": "val_acc", "limit": 5},
    ]
    made = client.create_report({"title": "Learning rates on MNIST", "blocks": blocks})
    return str(made["id"])


def fill(home: Home, folder: Path, *, trials: int = 24) -> Content:
    """Fills the server of this home, through `hop` and the API. It takes one to two minutes."""
    client = connect(start=False, home=home)
    owner = shell_in(folder / "mnist", home.root)
    owner.write("train.py", TRAIN)
    owner.write("diverge.py", DIVERGE)
    owner.write("tune.py", TUNE)
    owner.write("study.yaml", STUDY.format(trials=trials))
    owner.write("queues.yaml", QUEUES)
    owner.write("requirements.txt", "")
    submit(owner, "queue", "apply", "queues.yaml")
    push_datasets(owner, folder / "digits")
    shells = (owner, *(shell_of(user, owner, client, folder / user) for user in ("alice", "bob")))
    names: list[str] = []
    for label, params in RUNS:
        words = [word for key, value in params.items() for word in ("-p", f"{key}={value}")]
        tag = f"team={'vision' if len(names) % 2 else 'teaching'}"
        gpu = ("--gpus", "1", "--cpus", "1")
        names.append(
            shells[len(names) % 3].detach("-d", "mnist", "-n", label, "--tag", tag, *gpu, *words, "train.py")
        )
        for shell in shells:
            shell.write("train.py", TRAIN + f"# after {label}\n")
    failed = owner.detach("-n", "too-fast", "--gpus", "1", "--cpus", "1", "diverge.py")
    study = submit(owner, "search", "study.yaml", "--detach")
    for name in (*names, failed, study):
        owner.hop("logs", "--follow", name)
    runs = [client.get_run_by_name(*name.split("/")) for name in names]
    assert all(run["phase"] == "succeeded" for run in runs), runs[0]["reason"]
    content = Content([run["id"] for run in runs], folder=owner.folder)
    content.failed, content.study = failed, study
    submit(owner, "update", names[0], "--note", NOTES)
    content.live = owner.detach(
        "-d",
        "mnist",
        "-n",
        "live",
        "--gpus",
        "8",
        "--cpus",
        "8",
        "-p",
        "live=1",
        "-p",
        "epochs=500",
        "train.py",
    )
    owner.detach("-n", "resnet", "--queue", "speech", "--gpus", "4", "--cpus", "2", "-p", "live=1",
                 "-p", "epochs=500", "train.py")  # fmt: skip
    content.waiting = owner.detach("-n", "large", "--gpus", "8", "--replicas", "2", "--cpus", "4", "train.py")
    owner.detach("-n", "next", "--gpus", "8", "--cpus", "4", "train.py")
    wait_until(lambda: client.get_run_by_name(*content.live.split("/"))["phase"] == "running")
    content.report = make_report(client, content.runs)
    start = (datetime.now() + timedelta(days=1)).replace(hour=9, minute=0)
    submit(owner, "reserve", "course", "--user", "alice", "--gpus", "4", "--from", f"{start:%Y-%m-%dT%H:%M}",
           "--for", "3h")  # fmt: skip
    return content

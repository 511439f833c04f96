"""An unmodified script with the SummaryWriter of PyTorch: its media and hyperparameters in the run."""

from __future__ import annotations

import json

import pytest

from tests.cli.shell import Shell

SCRIPT = """
import argparse
import numpy as np
from torch.utils.tensorboard import SummaryWriter
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
args = parser.parse_args()
with SummaryWriter("runs/exp") as writer:
    for step in range(2):
        writer.add_scalar("loss", 1 / (step + 1), step)
        writer.add_image("sample", np.full((3, 4, 5), step / 2), step)
    writer.add_histogram("weights", np.arange(100.0), 1)
    writer.add_audio("sound", np.zeros((1, 800)), 1, sample_rate=8000)
    writer.add_text("note", "hello", 1)
    writer.add_pr_curve("curve", np.array([0, 1]), np.array([0.2, 0.8]), 1)
    writer.add_hparams({"lr": 9.0, "width": 64}, {"hparam/accuracy": 0.75})
"""


@pytest.mark.torch
def test_media_of_event_files_are_those_of_the_run(scripts: Shell) -> None:
    pytest.importorskip("tensorboard")
    scripts.write("train.py", SCRIPT)
    run = scripts.hop("run", "--json", "-p", "lr=0.25", "train.py", timeout_s=400).json
    items = scripts.hop("media", run["name"], "--json").json
    found = {(item["name"], item["step"]): (item["kind"], item["type"], item["details"]) for item in items}
    size = {"width": 5, "height": 4}
    assert found == {
        ("sample", 0): ("image", "image/png", size),
        ("sample", 1): ("image", "image/png", size),
        ("weights", 1): ("histogram", "application/json", {"count": 100}),
        ("sound", 1): ("audio", "audio/wav", {"sample_rate": 8000, "duration_s": 0.1}),
        ("note/text_summary", 1): ("text", "text/plain", {"characters": 5}),
    }
    counted = json.loads(scripts.hop("media", run["name"], "weights", "-o", "-").text)
    assert (sum(counted["counts"]), counted["min"], counted["max"], counted["mean"]) == (100, 0, 99, 49.5)
    shown = scripts.hop("info", run["name"], "--json").json
    assert {name: shown["params"][name] for name in ("lr", "width")} == {"lr": 0.25, "width": 64}
    assert shown["latest"]["hparam/accuracy"][1] == 0.75
    text = scripts.hop("info", run["name"]).text
    assert "these stay in its event files: PR curves (curve)" in text

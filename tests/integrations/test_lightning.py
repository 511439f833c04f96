"""The callback for Lightning, in real trainings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integrations.attempts import (
    Attempts,
    check_attempts,
    declare_lr,
    files_of,
    resume_with_other_rate,
    set_params,
)
from tests.sdk.scripts import read_points

torch = pytest.importorskip("torch")
pytest.importorskip("lightning", reason="needs Lightning")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

PYTORCH_LIGHTNING = """
import importlib, sys
sys.modules["lightning"] = None  # it is absent
from hopyard.integrations import lightning
from hopyard.integrations.lightning import HopCallback
import torch
from pytorch_lightning import Callback, LightningModule, Trainer

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        return self.net(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

hopyard = HopCallback(sys.argv[1])
options = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
Trainer(callbacks=[hopyard], max_epochs=1, **options).fit(Net(), torch.ones(2, 1))
print(hopyard.best_model_path)
del sys.modules["lightning"]  # both are there, and the script has imported one
assert issubclass(importlib.reload(lightning).HopCallback, Callback)
"""
BATCHES, EPOCHS = 3, 4


@pytest.mark.slow
def test_pytorch_lightning_is_accepted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PYTORCH_LIGHTNING, str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert (done.stdout.strip(), done.returncode) == (str(tmp_path / "hop-step=2.ckpt"), 0), done.stderr


def train(on_batch: Callable[[int], None], *, logger: Any = False) -> list[float]:
    """Trains a small model on three batches an epoch. logger: none by default, as many scripts do."""
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

    from hopyard.integrations.lightning import HopCallback

    class Net(LightningModule):  # type: ignore[misc]
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
            )

        def training_step(self, batch: Any, index: int) -> Any:
            loss = ((self.net(batch[0]) - batch[1]) ** 2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

    class Watch(Callback):  # type: ignore[misc]
        batches = 0

        def on_train_batch_end(self, *_: Any) -> None:
            self.batches += 1
            on_batch(self.batches)

    seed_everything(3, verbose=False)
    inputs = torch.randn(4 * BATCHES, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    callback = HopCallback()
    model = Net(declare_lr().lr)
    trainer = Trainer(
        max_epochs=EPOCHS,
        callbacks=[Watch(), callback],
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        accelerator="cpu",
    )
    trainer.fit(model, loader, ckpt_path=callback.last_checkpoint())
    return [float(value) for weights in model.parameters() for value in weights.detach().flatten()]


def test_interrupted_training_ends_as_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = check_attempts(tmp_path, monkeypatch, train, "loss")
    assert files_of(broken.run_dir) == ["hop-step=12.ckpt", "hop-step=9.ckpt"]
    assert [event["done"] for event in broken.events if event["kind"] == "progress"] == [4]
    # preempted in the second epoch, killed in the fourth
    assert len(broken.folders) == 3


def test_set_changes_the_rate_and_plain_python_begins_at_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(tmp_path / "set", monkeypatch)
    with attempts.attempt() as folder:
        changed = train(lambda batches: set_params(folder, lr=0.5) if batches == 2 else None)
    (answer,) = [event for event in attempts.events if event["kind"] == "command"]
    assert (answer["state"], answer["step"]) == ("applied", 2)
    assert "lr of `optimizer_0` 0.05 -> 0.5" in answer["answer"]
    offline = Attempts(tmp_path / "plain", monkeypatch, offline=True)
    ends = []
    for _ in range(2):
        with offline.attempt():
            ends.append(train(lambda batches: None))
    assert ends[0] == ends[1] != changed
    assert files_of(offline.run_dir) == ["hop-step=12.ckpt", "hop-step=9.ckpt"]


def test_changed_rate_replaces_that_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = resume_with_other_rate(tmp_path, monkeypatch, train)
    assert "`optimizer_0`: the script has changed lr: 0.5 replaces 0.05" in capsys.readouterr().err
    saved = torch.load(attempts.run_dir / "hop-step=12.ckpt", weights_only=True)
    assert saved["optimizer_states"][0]["param_groups"][0]["lr"] == 0.5


def test_trainer_keeps_its_best_model_and_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from hopyard.integrations.lightning import HopCallback

    class Net(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            assert (self.trainer.log_dir, self.logger.version) == (str(tmp_path / "root"), 0)
            self.logger.experiment.add_text("any", "method")
            self.log("loss", self.net(batch[0]).mean())
            self.log("rising", float(self.global_step))
            return self.net(batch[0]).mean()

        def test_step(self, batch: Any, index: int) -> None:
            self.log("tested", 1.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 1)))
    best = ModelCheckpoint(str(tmp_path / "own"), monitor="rising", mode="min", filename="{step}")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    attempts = Attempts(tmp_path, monkeypatch)
    with attempts.attempt() as folder:
        trainer = Trainer(
            max_epochs=3,
            callbacks=[HopCallback(), best],
            default_root_dir=tmp_path / "root",
            log_every_n_steps=1,
            accelerator="cpu",
            **quiet,
        )
        trainer.fit(Net(), loader)
        trainer.test(dataloaders=loader)
        assert trainer.ckpt_path == best.best_model_path == str(tmp_path / "own" / "step=2.ckpt")
        assert "training 2 saves to the folder of the first one" not in capsys.readouterr().err
        trainer.fit_loop.max_epochs = 4
        trainer.fit(Net(), loader)
        assert "training 2 saves to the folder of the first one" in capsys.readouterr().err
        points = [point.step for name, point in read_points(folder) if name == "loss"]
    assert points == [0, 1, 2, 3, 4, 5, 6, 7]
    assert attempts.series("tested")
    alone = Attempts(tmp_path / "alone", monkeypatch)
    with alone.attempt():
        trainer = Trainer(callbacks=[HopCallback()], default_root_dir=tmp_path / "root", **quiet)
        trainer.test(Net(), loader)
    assert list(alone.series("tested").values()) == [1.0]


@pytest.mark.parametrize("is_followed", [True, False])
def test_metrics_that_the_run_reads_from_event_files_are_not_logged_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_followed: bool
) -> None:
    pytest.importorskip("tensorboard", reason="needs TensorBoard")
    from lightning.pytorch.loggers import TensorBoardLogger

    attempts = Attempts(tmp_path, monkeypatch)
    if is_followed:  # as under `hop run`
        reports = SimpleNamespace(is_claimed=lambda *_: True)
        monkeypatch.setitem(sys.modules, "hopyard_startup.reports", reports)
    with attempts.attempt():
        train(lambda batches: None, logger=TensorBoardLogger(tmp_path))
    assert bool(attempts.series("loss")) is not is_followed


def test_checkpoints_of_an_earlier_training_do_not_displace_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(tmp_path, monkeypatch, offline=True)
    attempts.run_dir.mkdir(parents=True)
    for step in (90, 99):
        (attempts.run_dir / f"hop-step={step}.ckpt").touch()
    with attempts.attempt():
        train(lambda batches: None)
    assert files_of(attempts.run_dir) == [f"hop-step={step}.ckpt" for step in (12, 9, 90, 99)]

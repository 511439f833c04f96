"""The callback for Lightning, in real trainings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.attempts import Attempts, check_attempts, declare_lr, files_of, set_params

torch = pytest.importorskip("torch")
pytest.importorskip("lightning", reason="needs Lightning")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BATCHES, EPOCHS = 3, 4


def train(on_batch: Callable[[int], None], *, plain: bool = False, resumable: bool = False) -> list[float]:
    """Trains a small model on three batches an epoch. plain: without loggers, as many scripts do."""
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
        logger=False,
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

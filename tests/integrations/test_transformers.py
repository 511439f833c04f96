"""The callback for the `Trainer` of transformers, in real trainings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.attempts import Attempts, check_attempts, declare_lr, files_of, set_params

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _without_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here `import datasets` would find a folder of these tests."""
    monkeypatch.setattr("transformers.trainer.is_datasets_available", lambda: False)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
        outputs = self.net(inputs)
        return {"loss": ((outputs - labels) ** 2).mean(), "logits": outputs}


def train(on_batch: Callable[[int], None], *, save_steps: int = 3, output: Path | None = None) -> list[float]:
    """Trains a small model on three batches an epoch, with a schedule and an evaluation. output: a folder for
    the checkpoints that the callback does not know."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    from hopyard.integrations.transformers import HopCallback

    class Watch(TrainerCallback):  # type: ignore[misc]
        batches = 0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.batches += 1
            on_batch(self.batches)

    set_seed(3)
    inputs = torch.randn(12, 4)
    rows = [{"inputs": row, "labels": row.sum(0, keepdim=True)} for row in inputs]
    callback, model = HopCallback(), Net()
    arguments = TrainingArguments(
        str(output or callback.folder),
        learning_rate=declare_lr().lr,
        num_train_epochs=4,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_steps=save_steps,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Watch(), callback])
    trainer.train(resume_from_checkpoint=callback.last_checkpoint())
    return [float(value) for weights in model.parameters() for value in weights.detach().flatten()]


def test_interrupted_training_ends_as_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = check_attempts(tmp_path, monkeypatch, train, "loss")
    assert "the trainer saves to" not in capsys.readouterr().err
    assert files_of(broken.run_dir) == ["checkpoint-12", "checkpoint-9"]
    shown = {k: v for event in broken.events if event["kind"] == "params" for k, v in event["values"].items()}
    assert (shown["learning_rate"], shown["per_device_train_batch_size"]) == (0.05, 4)
    assert "adam_beta1" not in shown


def test_incomplete_checkpoints_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hopyard.integrations.transformers import HopCallback

    attempts = Attempts(tmp_path, monkeypatch)
    with attempts.attempt():
        callback = HopCallback()
        assert callback.last_checkpoint() is None
        for name, file in (
            ("checkpoint-9", "trainer_state.json"),
            ("checkpoint-10", "trainer_state.json"),
            ("checkpoint-11", "optimizer.pt"),
        ):
            (attempts.run_dir / name).mkdir(parents=True)
            (attempts.run_dir / name / file).write_text("{}")
        (attempts.run_dir / "checkpoint-12").mkdir()
        (attempts.run_dir / "checkpoint-12" / "trainer_state.json").write_text('{"global_step": 1')
        assert callback.last_checkpoint() == str(attempts.run_dir / "checkpoint-10")


def test_set_changes_the_rate_and_plain_python_begins_at_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = Attempts(tmp_path / "set", monkeypatch)
    with attempts.attempt() as folder:
        changed = train(lambda batches: set_params(folder, lr=0.5) if batches == 2 else None)
    (answer,) = [event for event in attempts.events if event["kind"] == "command"]
    assert (answer["state"], answer["step"]) == ("applied", 2)
    assert attempts.series("learning_rate")[12] > 0.04 > 0.05 / 12
    assert "the trainer saves to" not in capsys.readouterr().err
    with Attempts(tmp_path / "other", monkeypatch).attempt():
        train(lambda batches: None, output=tmp_path / "elsewhere")
    assert "the trainer saves to" in capsys.readouterr().err
    offline = Attempts(tmp_path / "plain", monkeypatch, offline=True)
    ends = []
    for _ in range(2):
        with offline.attempt():
            ends.append(train(lambda batches: None))
    assert ends[0] == ends[1] != changed

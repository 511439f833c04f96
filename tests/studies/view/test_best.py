"""The best model of a study, from its saved state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.studies.view.best import best_config, model_of, read_state
from hopyard.studies.view.study_view import StudyView
from hopyard.trainables.config import Config
from hopyard.trial_state.encode import encode
from tests.studies.view.test_study_view import SPEC, proposal_record, report_record

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_model_of_best_trial_is_ready_to_predict(tmp_path: Path) -> None:
    from hopyard.trainables.torch_trainable import TorchTrainable

    def make_model(config: Config) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(2, int(config["width"])), torch.nn.Dropout(0.5))

    trainable = TorchTrainable(
        model=make_model,
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.1),
        loss=torch.nn.functional.mse_loss,
    )
    records = [
        SPEC,
        proposal_record("0", width=3),
        report_record("0", 1, 0.5),
        proposal_record("1", width=4),
        report_record("1", 1, 0.7),
    ]
    view = StudyView.from_records(records)
    config = best_config(view)
    assert config is not None and (config.trial, config.epoch, config.width) == ("1", 1, 4)
    state = trainable.init(config)
    file = tmp_path / "0.1"
    file.write_bytes(encode({"state": trainable.capture(state), "chance": {}}).to_bytes())
    model = model_of(trainable, read_state(file, trainable, view, untrusted=True), config)
    assert not model.training
    x = torch.ones(1, 2)
    assert torch.equal(model(x), state.model.eval()(x))
    assert model_of(object(), {"w": 1.0}, config) == {"w": 1.0}, "a trainable without a model has its state"
    assert best_config(StudyView.from_records([SPEC])) is None

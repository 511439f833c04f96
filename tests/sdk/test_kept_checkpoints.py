"""Checkpoints that stay beside the newest: the best one, and those that the script keeps."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from hopyard.errors import SpecError
from hopyard.sdk import checkpoints
from hopyard.sdk.best_metric import BestMetric
from tests.sdk.scripts import Replica


def test_derived_metric_is_the_summarised_one_else_one_of_a_validation_set() -> None:
    metric = BestMetric()
    assert metric.rule({}, {"train_loss": 1.0, "lr": 0.1}) == ""
    assert metric.rule({}, {"train_loss": 1.0, "val/loss": 0.1}) == "val/loss"
    assert metric.rule({"acc": 1.0, "size": 3.0}, {"val_loss": 1.0, "acc": 0.5}) == "acc"
    assert not metric.is_improved_by({"acc": 1.0}), "only a requested metric causes a save"


def test_requested_metric_improves_in_its_direction() -> None:
    metric = BestMetric()
    metric.request("val_loss")
    values = [3.0, 4.0, float("nan"), 2.0, 2.0]
    improved = [metric.is_improved_by({"val_loss": value}) for value in values]
    assert improved == [True, False, False, True, False]
    assert metric.rule({}, {"val_loss": 1.0}) == "min:val_loss"
    metric.request("max:val_loss")
    assert metric.is_improved_by({"val_loss": 1.0}) and not metric.is_improved_by({})
    for wrong in ("", "max:", 3):
        with pytest.raises(SpecError, match="keep_best"):
            metric.request(wrong)  # type: ignore[arg-type]


KEEP = """
import hopyard as hop
seen = hop.bind(turns=[])
for epoch in hop.loop(range(8), every=4, keep_best="max:acc"):
    seen.turns.append(epoch)
    hop.log(acc=[1, 3, 2, 2, 5, 4, 4, 4][epoch], step=epoch)
    if epoch == 2:
        hop.save(keep=True)
"""


def test_improved_iteration_is_saved_and_announced_with_its_rule(replica: Replica) -> None:
    replica.run(KEEP)
    saved = replica.events_of("checkpoint")
    assert [(event["step"], event.get("kept", False)) for event in saved] == [
        (1, False),
        (2, False),
        (3, True),
        (4, False),
        (5, False),
        (8, False),
    ]
    assert {event["best_by"] for event in saved} == {"max:acc"}
    index = json.loads((replica.folder / "checkpoints" / "5" / "hopyard.json").read_text())
    assert (index["best_by"], index["kept"], index["metrics"]) == ("max:acc", False, {"acc": 5.0})


def test_offline_run_keeps_its_best_and_its_kept_checkpoints(tmp_path: Path) -> None:
    for step, accuracy in enumerate([math.nan, 0.9, 0.9, 0.3, math.nan, 0.1], 1):
        checkpoints.write_checkpoint(
            str(tmp_path), step, {"a": step}, [], {"acc": accuracy}, best_by="acc", kept=step == 4
        )
        os.utime(tmp_path / str(step), (step, step))
    checkpoints.prune_checkpoints(str(tmp_path), 1)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["2", "4", "6"]

"""Which checkpoint is the best one of a run."""

from __future__ import annotations

from datetime import UTC, datetime

from hopyard.domain.best_checkpoint import best_checkpoint, checkpoint_of_value
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.dataset import Dataset
from hopyard.domain.ids import Digest, RunId, attempt_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = RunId("abcdefgh")


def saved(step: int, best_by: str = "", *, damaged: bool = False, **metrics: float) -> Checkpoint:
    return Checkpoint(
        ID,
        attempt_id(ID, 1),
        0,
        step,
        Digest("0" * 64),
        1,
        NOW,
        metrics=metrics,
        best_by=best_by,
        damaged=damaged,
    )


def best_step(checkpoints: list[Checkpoint], *datasets: Dataset) -> int | None:
    best = best_checkpoint(checkpoints, datasets)
    return None if best is None else best.step


def test_newest_rule_decides_and_the_earliest_of_equal_values_wins() -> None:
    run = [saved(1, acc=0.9, loss=0.5), saved(2, "acc", acc=0.9, loss=0.1), saved(3, "acc", acc=0.4)]
    assert best_step(run) == 1
    assert best_step([*run, saved(4, "min:acc", acc=0.6)]) == 3
    assert best_step([*run, saved(4, "loss", loss=0.2)]) == 2


def test_requested_metric_precedes_that_of_the_dataset_and_a_derived_one_follows() -> None:
    dataset = Dataset("d", NOW, 1, None, metric="score", higher_is_better=False)
    run = [
        saved(1, "acc", acc=0.1, score=5),
        saved(2, "acc", acc=0.2, score=3),
        saved(3, "acc", acc=0.3, score=4),
    ]
    assert best_step(run, dataset) == 2
    assert best_step([*run, saved(4, "max:acc", acc=0)], dataset) == 3
    assert best_step(run, Dataset("d", NOW, 1, None, metric="other")) == 3


def test_damaged_and_unmeasured_checkpoints_are_never_the_best() -> None:
    assert best_step([saved(1, "acc", acc=1, damaged=True), saved(2, "acc", acc=0.5), saved(3, "acc")]) == 2
    nan = float("nan")
    assert best_step([saved(1, "acc", acc=nan), saved(2, "acc", acc=0.5)]) == 2
    assert best_step([saved(1, "acc", acc=nan)]) is None
    assert best_step([saved(1, acc=1)]) is None and best_step([]) is None
    assert best_step([saved(1, "acc"), saved(2, "f1:x")]) is None


def test_checkpoint_of_a_value() -> None:
    run = [saved(1, acc=0.9), saved(2, acc=0.5), saved(3, acc=0.9), saved(4, damaged=True, acc=0.7), saved(5)]

    def step(metric: str, value: float, at: int | None = None) -> int | None:
        found = checkpoint_of_value(run, metric, value, step=at, higher=True)
        return None if found is None else found.step

    assert (step("acc", 0.9), step("acc", 0.9, 3), step("acc", 0.5, 3), step("acc", 0.7)) == (1, 3, 2, 1)
    assert step("loss", 0.1) == 5
    assert checkpoint_of_value(run[3:4], "acc", 0.7, step=None, higher=True) is None

"""Selects the best checkpoint of a run by one of the metrics that were saved with its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.dataset import Dataset
from hopyard.domain.metric_direction import higher_is_better, sort_key


def best_checkpoint(checkpoints: Sequence[Checkpoint], datasets: Iterable[Dataset] = ()) -> Checkpoint | None:
    """Returns the best undamaged checkpoint, or None if no metric decides.

    The metric is the one that the script requested (`keep_best`), else that of a dataset of the run, else the
    one that the SDK derived. The newest checkpoint states the metric of the script. Of equal values the
    earliest wins, since later checkpoints repeat the value of the last evaluation.
    """
    return next(iter(best_checkpoints(checkpoints, 1, datasets=datasets)), None)


def best_checkpoints(
    checkpoints: Sequence[Checkpoint], count: int, *, metric: str = "", datasets: Iterable[Dataset] = ()
) -> list[Checkpoint]:
    """Returns the best undamaged checkpoints of as many steps, the best one first, as `best_checkpoint`
    ranks them. metric: "max:val_acc" or "val_acc", which decides alone if it is given."""
    undamaged = [checkpoint for checkpoint in checkpoints if not checkpoint.damaged]
    newest_choice = metric or next((c.best_by for c in reversed(undamaged) if c.best_by), "")
    for name, higher in _ranking_metrics(newest_choice, () if metric else datasets):
        measured = [checkpoint for checkpoint in undamaged if _has_number(checkpoint, name)]
        ranked = sorted(measured, key=lambda c: sort_key(c.metrics[name], higher=higher))
        if ranked:
            of_step: dict[int, Checkpoint] = {}
            for checkpoint in ranked:
                of_step.setdefault(checkpoint.step, checkpoint)
            return list(of_step.values())[:count]
    return []


def checkpoint_of_value(
    checkpoints: Sequence[Checkpoint], metric: str, value: float, *, step: int | None, higher: bool
) -> Checkpoint | None:
    """Returns the checkpoint that has this value of the metric; None if there is no undamaged checkpoint.

    Of several, the one at `step` counts, else the earliest. If none has the value, the best one by this
    metric counts, else the newest one.
    """
    undamaged = [checkpoint for checkpoint in checkpoints if not checkpoint.damaged]
    measured = [checkpoint for checkpoint in undamaged if _has_number(checkpoint, metric)]
    equal = [checkpoint for checkpoint in measured if checkpoint.metrics[metric] == value]
    if equal:
        return next((checkpoint for checkpoint in equal if checkpoint.step == step), equal[0])
    if measured:
        return min(measured, key=lambda c: sort_key(c.metrics[metric], higher=higher))
    return undamaged[-1] if undamaged else None


def _has_number(checkpoint: Checkpoint, metric: str) -> bool:
    return not math.isnan(checkpoint.metrics.get(metric, math.nan))


def _ranking_metrics(best_by: str, datasets: Iterable[Dataset]) -> Iterable[tuple[str, bool]]:
    direction, separator, name = best_by.partition(":")
    is_requested = bool(separator) and direction in ("max", "min")
    if is_requested:
        yield name, direction == "max"
    for dataset in datasets:
        if dataset.metric:
            declared = dataset.higher_is_better
            yield dataset.metric, higher_is_better(dataset.metric) if declared is None else declared
    if best_by and not is_requested:
        yield best_by, higher_is_better(best_by)

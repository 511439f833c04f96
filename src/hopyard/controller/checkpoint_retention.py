"""Limits how many checkpoints of a run are kept."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.best_checkpoint import best_checkpoint
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.dataset import Dataset
from hopyard.domain.run import Attempt, Run
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.run_store import RunStore


def expired_steps(
    checkpoints: Sequence[Checkpoint],
    attempts: Sequence[Attempt],
    *,
    retained_count: int,
    datasets: Sequence[Dataset] = (),
) -> list[int]:
    """Returns the steps to delete so that the newest `retained_count` remain. 0 keeps all.

    The best checkpoint remains, and those marked as kept. So do checkpoints from which an attempt resumed,
    since the visible part of the streams depends on them. datasets: those of the run.
    """
    if retained_count <= 0:
        return []
    resumed_from = {attempt.resumed_from_step for attempt in attempts}
    retained = {
        checkpoint.step for checkpoint in checkpoints if checkpoint.kept or checkpoint.step in resumed_from
    }
    if (best := best_checkpoint(checkpoints, datasets)) is not None:
        retained.add(best.step)
    newest_first = list(dict.fromkeys(checkpoint.step for checkpoint in reversed(checkpoints)))
    return [step for step in newest_first[retained_count:] if step not in retained]


async def delete_expired_checkpoints(
    runs: RunStore, datasets: DatasetStore, run: Run, *, retained_count: int
) -> int:
    """Deletes a run's expired checkpoints, those of the script itself apart from the others. Returns the
    number of deleted steps."""
    if retained_count <= 0:
        return 0
    all_checkpoints = await runs.checkpoints(run.id, own=True)
    deleted = 0
    for own in (False, True):
        checkpoints = [checkpoint for checkpoint in all_checkpoints if bool(checkpoint.path) is own]
        if len(checkpoints) <= retained_count:
            continue
        steps = expired_steps(
            checkpoints,
            [] if own else await runs.attempts(run.id),
            retained_count=retained_count,
            datasets=await run_datasets(datasets, run),
        )
        if steps:
            await runs.delete_checkpoints(run.id, steps, own=own)
        deleted += len(steps)
    return deleted


async def run_datasets(datasets: DatasetStore, run: Run) -> list[Dataset]:
    """Returns the datasets of a run that still exist, in the order of the run."""
    found = [await datasets.find(ref.name) for ref in run.spec.datasets]
    return [dataset for dataset in found if dataset is not None]

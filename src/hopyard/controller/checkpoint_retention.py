"""Limits how many checkpoints of a run are kept."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.checkpoint_retention import DEFAULT_RULE, RetentionRule, retention_reasons
from hopyard.domain.dataset import Dataset
from hopyard.domain.run import Attempt, Run
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.run_store import RunStore


def expired_steps(
    checkpoints: Sequence[Checkpoint],
    attempts: Sequence[Attempt],
    *,
    retained_count: int,
    rule: RetentionRule = DEFAULT_RULE,
    datasets: Sequence[Dataset] = (),
) -> list[int]:
    """Returns the steps to delete by the rule of the run, the newest first, see `retention_reasons`.

    retained_count: how many of the newest remain if the rule names no number; 0 keeps all. datasets: those of
    the run.
    """
    reasons = retention_reasons(
        checkpoints,
        rule,
        default_last=retained_count,
        resumed_from=[attempt.resumed_from_step for attempt in attempts],
        datasets=datasets,
    )
    newest_first = dict.fromkeys(checkpoint.step for checkpoint in reversed(checkpoints))
    return [step for step in newest_first if step not in reasons]


async def delete_expired_checkpoints(
    runs: RunStore, datasets: DatasetStore, run: Run, *, retained_count: int
) -> int:
    """Deletes a run's expired checkpoints, those of the script itself apart from the others. Returns the
    number of deleted steps. retained_count: the setting of the server, see `expired_steps`."""
    rule = run.spec.retention or DEFAULT_RULE
    last = retained_count if rule.last is None else rule.last
    if last <= 0:
        return 0
    all_checkpoints = await runs.checkpoints(run.id, own=True)
    deleted = 0
    for own in (False, True):
        checkpoints = [checkpoint for checkpoint in all_checkpoints if bool(checkpoint.path) is own]
        if len(checkpoints) <= last:
            continue
        steps = expired_steps(
            checkpoints,
            [] if own else await runs.attempts(run.id),
            retained_count=retained_count,
            rule=rule,
            datasets=await run_datasets(datasets, run),
        )
        if steps:
            await runs.delete_checkpoints(run.id, steps, own=own)
        deleted += len(steps)
    return deleted


async def retained_steps(
    runs: RunStore, datasets: DatasetStore, run: Run, *, retained_count: int
) -> dict[bool, dict[int, tuple[str, ...]]]:
    """Returns why the retention keeps each step: of checkpoints of the script itself (True), and of others.
    retained_count: the setting of the server, see `expired_steps`."""
    found = await runs.checkpoints(run.id, own=True)
    attempts, present = await runs.attempts(run.id), await run_datasets(datasets, run)
    return {
        own: retention_reasons(
            [checkpoint for checkpoint in found if bool(checkpoint.path) is own],
            run.spec.retention or DEFAULT_RULE,
            default_last=retained_count,
            resumed_from=[] if own else [attempt.resumed_from_step for attempt in attempts],
            datasets=present,
        )
        for own in (False, True)
    }


async def run_datasets(datasets: DatasetStore, run: Run) -> list[Dataset]:
    """Returns the datasets of a run that still exist, in the order of the run."""
    found = [await datasets.find(ref.name) for ref in run.spec.datasets]
    return [dataset for dataset in found if dataset is not None]

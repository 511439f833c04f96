"""Limits how many checkpoints of a run are kept."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import RunId
from hopyard.domain.run import Attempt
from hopyard.interfaces.run_store import RunStore


def expired_steps(
    checkpoints: Sequence[Checkpoint], attempts: Sequence[Attempt], *, retained_count: int
) -> list[int]:
    """Returns the steps to delete so that the newest `retained_count` remain. 0 keeps all.

    Checkpoints marked as kept remain. So do checkpoints from which an attempt resumed, since the visible part
    of the streams depends on them.
    """
    if retained_count <= 0:
        return []
    resumed_from = {attempt.resumed_from_step for attempt in attempts}
    retained = {
        checkpoint.step for checkpoint in checkpoints if checkpoint.kept or checkpoint.step in resumed_from
    }
    newest_first = list(dict.fromkeys(checkpoint.step for checkpoint in reversed(checkpoints)))
    return [step for step in newest_first[retained_count:] if step not in retained]


async def delete_expired_checkpoints(runs: RunStore, run: RunId, *, retained_count: int) -> int:
    """Deletes a run's expired checkpoints. Returns the number of deleted steps."""
    if retained_count <= 0:
        return 0
    steps = expired_steps(
        await runs.checkpoints(run), await runs.attempts(run), retained_count=retained_count
    )
    if steps:
        await runs.delete_checkpoints(run, steps)
    return len(steps)

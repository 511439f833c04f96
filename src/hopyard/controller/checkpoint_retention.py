"""How many checkpoints of a run are kept."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import RunId
from hopyard.domain.run import Attempt
from hopyard.interfaces.run_store import RunStore


def expired_steps(
    checkpoints: Sequence[Checkpoint], attempts: Sequence[Attempt], *, retained_count: int
) -> list[int]:
    """The steps to delete so that the `retained_count` last saved stay; 0 keeps all.

    Those marked kept stay, and those that an attempt started from: what users see of the streams depends on
    them.
    """
    if retained_count <= 0:
        return []
    started_from = {attempt.resumed_from_step for attempt in attempts}
    stay = {
        checkpoint.step for checkpoint in checkpoints if checkpoint.kept or checkpoint.step in started_from
    }
    last = list(dict.fromkeys(checkpoint.step for checkpoint in reversed(checkpoints)))
    return [step for step in last[retained_count:] if step not in stay]


async def delete_expired_checkpoints(runs: RunStore, run: RunId, *, retained_count: int) -> int:
    """Delete a run's superfluous checkpoints; how many steps went."""
    if retained_count <= 0:
        return 0
    steps = expired_steps(
        await runs.checkpoints(run), await runs.attempts(run), retained_count=retained_count
    )
    if steps:
        await runs.delete_checkpoints(run, steps)
    return len(steps)

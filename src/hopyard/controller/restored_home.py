"""The first start of a home that was restored from a backup. Its nodes stay cordoned until its administrator
uncordons them."""

from __future__ import annotations

from datetime import datetime

from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.engine import Engine


async def cordon_restored(cluster: ClusterStore, engine: Engine, clock: Clock, *, created_at: str) -> None:
    """Records what the engine observes, and cordons its nodes. Attempts that were live in the backup are
    recorded as lost, and their runs are requeued. They end at the time of the backup, since the time after it
    is no run time."""
    ended_at = _backup_time(created_at, clock.now())
    observation = await engine.observe()
    await cluster.record_observation(engine.name, observation, now=ended_at)
    observed_attempts, snapshot = (
        {status.attempt for status in observation.attempts},
        await cluster.snapshot(now=clock.now()),
    )
    for running in snapshot.running:  # attempts that were starting would otherwise be launched now
        if running.attempt not in observed_attempts and snapshot.engine_of(running) in (engine.name, None):
            await cluster.fail_launch(
                running.attempt, "lost: it was starting when the backup was made", now=ended_at
            )
    reason = f"restored from the backup of {created_at}: the original server may still run these waiting runs"
    for node in await cluster.nodes():
        if node.engine == engine.name:
            await cluster.set_cordon(node.id, True, reason=reason)


def _backup_time(created_at: str, now: datetime) -> datetime:
    """Returns when the backup was made; now, if that is unknown or the clock was set back since."""
    try:
        return min(datetime.fromisoformat(created_at).astimezone(now.tzinfo), now)
    except ValueError:
        return now

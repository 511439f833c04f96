"""The first start of a home restored from a backup: its nodes are cordoned until its administrator uncordons
them."""

from __future__ import annotations

from datetime import datetime

from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.engine import Engine


async def cordon_restored(cluster: ClusterStore, engine: Engine, clock: Clock, *, created_at: str) -> None:
    """Take in what the engine has, and cordon its nodes. What was live when the backup was made is lost and
    waits again; it ended with the backup: the time in between is no run time."""
    ended_at = _backup_time(created_at, clock.now())
    seen = await engine.observe()
    await cluster.record_observation(engine.name, seen, now=ended_at)
    known, snapshot = {status.attempt for status in seen.attempts}, await cluster.snapshot(now=clock.now())
    for running in snapshot.running:  # what was just starting would be started here now
        if running.attempt not in known and snapshot.engine_of(running) in (engine.name, None):
            await cluster.fail_launch(
                running.attempt, "lost: it was starting when the backup was made", now=ended_at
            )
    reason = f"restored from the backup of {created_at}: the original server may still run these waiting runs"
    for node in await cluster.nodes():
        if node.engine == engine.name:
            await cluster.set_cordon(node.id, True, reason=reason)


def _backup_time(created_at: str, now: datetime) -> datetime:
    """When the backup was made; now, where that is not known or the clock was set back since."""
    try:
        return min(datetime.fromisoformat(created_at).astimezone(now.tzinfo), now)
    except ValueError:
        return now

"""The first start of a home that was made of a backup."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from hopyard.controller.restored_home import cordon_restored
from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.run import RunPhase
from hopyard.scheduler.cycle.planner import Planner
from tests.controller.world import World, play


def test_what_was_starting_when_the_backup_was_made_waits_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        run = await world.submit(gpus=1)
        now = world.clock.now()
        await world.cluster.record_observation(world.engine.name, await world.engine.observe(), now=now)
        lease = await world.cluster.acquire_lease("the original", now=now, ttl=timedelta(seconds=15))
        assert lease is not None
        plan = Planner()(await world.cluster.snapshot(now=now))
        (attempt,) = (await world.cluster.apply(plan, now=now, epoch=lease.epoch)).attempts
        assert (await world.cluster.live_attempts())[attempt] == AttemptPhase.STARTING
        await cordon_restored(world.cluster, world.engine, world.clock, created_at=now.isoformat())
        assert (await world.runs.get(run)).phase is RunPhase.QUEUED
        assert await world.cluster.live_attempts() == {}
        assert all(node.cordoned for node in await world.cluster.nodes())

    play(tmp_path, scene)

"""The first start of a home that was made of a backup."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from hopyard.controller.restored_home import cordon_restored
from hopyard.domain.attempt import AttemptPhase
from hopyard.domain.run import RunPhase
from hopyard.scheduler.cycle.planner import Planner
from tests.controller.controller_harness import ControllerHarness, run_scenario


def test_starting_run_of_a_restored_backup_is_queued_again(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        run = await harness.submit(gpus=1)
        now = harness.clock.now()
        await harness.cluster.record_observation(harness.engine.name, await harness.engine.observe(), now=now)
        lease = await harness.cluster.acquire_lease("the original", now=now, ttl=timedelta(seconds=15))
        assert lease is not None
        plan = Planner()(await harness.cluster.snapshot(now=now))
        (attempt,) = (await harness.cluster.apply(plan, now=now, epoch=lease.epoch)).attempts
        assert (await harness.cluster.live_attempts())[attempt] == AttemptPhase.STARTING
        await cordon_restored(harness.cluster, harness.engine, harness.clock, created_at=now.isoformat())
        assert (await harness.runs.get(run)).phase is RunPhase.QUEUED
        assert await harness.cluster.live_attempts() == {}
        assert all(node.cordoned for node in await harness.cluster.nodes())

    run_scenario(tmp_path, scenario)

"""The local engine with invalid replica folders: a living replica is never reported dead."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from hopyard.domain.attempt import ReplicaPhase
from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import ReplicaState, StopOrder
from hopyard.engines.local import engine
from hopyard.engines.local.ports import choose_port
from hopyard.engines.local.replica_folder import ReplicaFolder
from hopyard.testing.engine_contract import WAITING_SCRIPT, status_of
from tests.engines.local.engine_fixture import open_local_engine


def kill(state: ReplicaState, folder: Path) -> None:
    """Kills the replica and waits until its lock is free for all observers."""
    os.kill(state.pid, signal.SIGKILL)
    while ReplicaFolder(folder).is_alive():
        time.sleep(0.005)


def test_observation_without_descriptors_fails_instead_of_reporting_no_attempts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_local_engine(tmp_path) as fixture:
            await fixture.launch("a.1", WAITING_SCRIPT)
            await fixture.wait_until_running("a.1")
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))  # as if all descriptors were in use
            try:
                with pytest.raises(OSError):
                    await fixture.engine.observe()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert status_of(await fixture.engine.observe(), "a.1") is not None

    asyncio.run(scenario())


def test_partially_started_gang_is_not_observed_and_is_completed_by_next_launch(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with open_local_engine(tmp_path) as fixture:
            await fixture.launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT)
            first = await fixture.wait_until_running("a.1", 0)
            kill(await fixture.wait_until_running("a.1", 1), fixture.folder("a.1", 1))
            # the state when engine and spawner are killed between two forks
            for name in ("status.json", "lock"):
                (fixture.folder("a.1", 1) / name).unlink()
            fixture.engine = second = fixture.new_engine()
            try:
                assert status_of(await second.observe(), "a.1") is None
                await second.launch(await fixture.make_launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT))
                again = await fixture.wait_until_running("a.1", 1)
                assert (await fixture.wait_until_running("a.1", 0)).pid == first.pid, (
                    "the one that lives is not started twice"
                )
                assert again.pid != first.pid
                seen = status_of(await second.observe(), "a.1")
                assert seen is not None and [status.rank for status in seen.replicas] == [0, 1]
            finally:
                await second.close()

    asyncio.run(scenario())


def test_replica_with_unreadable_status_is_adopted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_local_engine(tmp_path) as fixture:
            await fixture.launch("a.1", WAITING_SCRIPT)
            kill(await fixture.wait_until_running("a.1"), fixture.folder("a.1"))
            (fixture.folder("a.1") / "status.json").write_bytes(b"")  # as after a power failure
            fixture.engine = second = fixture.new_engine()
            try:
                (ended,) = await fixture.wait_exits("a.1")
                assert ended.kind == "lost"
                await second.forget(AttemptId("a.1"))
            finally:
                await second.close()

    asyncio.run(scenario())


def test_replica_that_cannot_be_adopted_counts_as_unsent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_ADOPTIONS", 0)

    async def scenario() -> None:
        async with open_local_engine(tmp_path) as fixture:
            await fixture.launch("a.1", WAITING_SCRIPT)
            kill(await fixture.wait_until_running("a.1"), fixture.folder("a.1"))
            seen = status_of(await fixture.engine.observe(), "a.1")
            assert seen is not None
            assert [(each.phase, each.is_unsent) for each in seen.replicas] == [(ReplicaPhase.EXITED, True)]

    asyncio.run(scenario())


def test_every_port_is_tried_and_used_ports_are_skipped() -> None:
    chosen = {choose_port(()) for _ in range(20)}
    assert len(chosen) > 1
    assert all(choose_port(chosen) not in chosen for _ in range(20))


def test_stored_order_always_has_a_signal(tmp_path: Path) -> None:
    """A replica of an earlier version looks up the name of the signal."""
    folder = ReplicaFolder(tmp_path)
    orders = StopOrder(5.0), StopOrder.for_request(5.0, "INT"), StopOrder(3.0)
    for order, expected in zip(orders, ("TERM", "INT", "INT"), strict=True):
        folder.request_stop(order)
        stored = folder.read_stop()
        assert stored is not None and stored.signal == expected

"""A frozen replica cannot end its script. A later stop request, long after the deadline, ends both."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase
from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import StopOrder
from hopyard.engines.local import engine
from hopyard.engines.local.replica_folder import is_frozen
from hopyard.replica import process_tree
from hopyard.testing.engine_contract import WAITING_SCRIPT, status_of
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

GRACE_S = 0.2


@pytest.mark.parametrize("preempt", [True, False])
def test_frozen_replica_is_killed_when_overdue(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch, preempt: bool
) -> None:
    order = StopOrder.for_request(GRACE_S, preempt=preempt)

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        await fixture.launch("b.1", WAITING_SCRIPT)
        await fixture.wait_until_running("b.1")
        os.kill(state.pid, signal.SIGSTOP)
        await fixture.engine.stop(AttemptId("a.1"), order)
        await fixture.engine.stop(AttemptId("a.1"), order)  # its time is not over
        status = status_of(await fixture.engine.observe(), "a.1")
        assert status is not None and [replica.phase for replica in status.replicas] == [ReplicaPhase.RUNNING]
        assert process_tree.read_stat(state.pid) is not None
        deadline = asyncio.get_running_loop().time() + 60
        while (stat := process_tree.read_stat(state.child_pid)) is not None and stat.state not in "ZX":
            assert asyncio.get_running_loop().time() < deadline, "the script of a frozen replica lives on"
            await fixture.engine.stop(AttemptId("a.1"), order)
            await asyncio.sleep(0.02)
        (ended,) = await fixture.wait_exits("a.1")
        kind, text = (
            (ExitKind.PREEMPTED, "preempted") if preempt else (ExitKind.STOPPED, "stopped by request")
        )
        reason = f"{text}: its replica died on node {(await fixture.node()).id}"
        assert ended == Exit(kind, 137, reason)
        other = status_of(await fixture.engine.observe(), "b.1")
        assert other is not None and [replica.phase for replica in other.replicas] == [ReplicaPhase.RUNNING]

    monkeypatch.setattr(engine, "FROZEN_TIMEOUT_S", 0.5)
    run_scenario(scenario)


@pytest.mark.parametrize(("timeout_s", "same_replica"), [(600.0, True), (-1.0, False)])
def test_replica_whose_script_has_ended_is_given_time_to_send_the_rest(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch, timeout_s: float, same_replica: bool
) -> None:
    """The order of a stop is overdue meanwhile. A replica that is killed loses its place, not its data: an
    adoption sends the rest, but only a few times."""
    order = StopOrder.for_request(0.0, preempt=False)

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        await fixture.wait_until_running("a.1")
        await asyncio.to_thread(fixture.sink.stop_listening)
        await fixture.engine.stop(AttemptId("a.1"), order)
        sending = await fixture.wait_for_state("a.1", lambda state: state.exit is not None)
        for _ in range(3):
            await fixture.engine.stop(AttemptId("a.1"), order)
        if not same_replica:
            await fixture.wait_for_state("a.1", lambda state: state.pid != sending.pid)
        fixture.sink.restart_listening()
        fixture.publish_address()
        (ended,) = await fixture.wait_exits("a.1")
        assert ended == sending.exit
        state = fixture.state("a.1")
        assert state is not None and (state.pid == sending.pid, state.shipped) == (same_replica, True)

    monkeypatch.setattr(engine, "FROZEN_TIMEOUT_S", 0.0)
    monkeypatch.setattr(engine, "SENDING_TIMEOUT_S", timeout_s)
    run_scenario(scenario)


def test_frozen_replica_with_ended_script_is_lost(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        os.kill(state.pid, signal.SIGSTOP)
        await wait_for_detail(fixture, "its replica is stopped and sends no reports")
        os.kill(state.child_pid, signal.SIGKILL)
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.kind is ExitKind.LOST

    monkeypatch.setattr(engine, "FROZEN_TIMEOUT_S", 0.2)
    run_scenario(scenario)


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/freezer", os.W_OK),
    reason="there is no cgroup (version 1) that this user may freeze",
)
def test_replica_in_frozen_cgroup_is_detected(run_scenario: RunScenario) -> None:
    group = Path(f"/sys/fs/cgroup/freezer/hopyard-test-{os.getpid()}")

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        try:
            (group / "cgroup.procs").write_text(str(state.pid))
            (group / "freezer.state").write_text("FROZEN")
            await wait_for_detail(fixture, "its replica is stopped and sends no reports")
            (group / "freezer.state").write_text("THAWED")
            await wait_for_detail(fixture, "")
        finally:
            (group / "freezer.state").write_text("THAWED")
            (group.parent / "cgroup.procs").write_text(str(state.pid))

    group.mkdir()
    try:
        run_scenario(scenario)
    finally:
        group.rmdir()


async def wait_for_detail(fixture: LocalEngineFixture, detail: str) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while (status := status_of(await fixture.engine.observe(), "a.1")) is None or status.replicas[
        0
    ].detail != detail:
        assert asyncio.get_running_loop().time() < deadline, status
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("frozen", [True, False])
def test_freeze_is_read_from_cgroup_events(tmp_path: Path, frozen: bool) -> None:
    """As version 2 of the interface shows it, for a freeze of a group above as well."""
    (tmp_path / "proc" / str(os.getpid())).mkdir(parents=True)
    (tmp_path / "proc" / str(os.getpid()) / "cgroup").write_text("1:cpu:/other\n0::/lab.slice/run\n")
    (tmp_path / "groups" / "lab.slice" / "run").mkdir(parents=True)
    (tmp_path / "groups" / "lab.slice" / "run" / "cgroup.events").write_text(
        f"populated 1\nfrozen {frozen:d}\n"
    )
    assert is_frozen(os.getpid(), proc=tmp_path / "proc", groups=tmp_path / "groups") is frozen
    assert not is_frozen(os.getpid(), proc=tmp_path / "proc", groups=tmp_path / "elsewhere")

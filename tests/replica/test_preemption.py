"""A preempted run resumes as if it had not been interrupted."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.ids import AttemptId, check_digest
from hopyard.domain.launch import RestorePoint
from hopyard.domain.replica import StopOrder
from hopyard.engines.local.replica_folder import ReplicaFolder
from hopyard.replica import process_tree
from hopyard.replica.exit_reasons import free_disk_bytes, is_disk_full
from hopyard.testing.engine_contract import LOOP_SCRIPT, WAITING_SCRIPT
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario
from tests.small_disk import small_disk

torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
PREEMPTED = ExitKind.PREEMPTED

# Batches are steps, and only the end of an epoch saves: the run is preempted within an epoch. The attempt
TRAIN = """
import os, sys, time, torch, torch.distributed as dist, hopyard as hop
torch.set_num_threads(1)
dist.init_process_group('gloo')
rank = dist.get_rank()

def made():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return net, torch.nn.parallel.DistributedDataParallel(net), torch.optim.Adam(net.parameters(), lr=0.05)

def train(model, optimizer, epoch, batch):
    torch.manual_seed(1000 * epoch + 10 * batch + rank)
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()

net, model, optimizer = made()
hop.bind(net=net, optimizer=optimizer)
first = hop.run().restored_step is None
for epoch in hop.loop(range(2)):
    for batch in hop.loop(range(20), name='batch', every=1000):
        train(model, optimizer, epoch, batch)
        if epoch == 1 and batch == 4: print('middle', flush=True)
        time.sleep(0.1 if first and epoch else 0)
other, model, optimizer = made()
for epoch in range(2):
    for batch in range(20): train(model, optimizer, epoch, batch)
dist.barrier()
print(*(sum(w.double().sum() for w in each.parameters()).item().hex() for each in (net, other)))
sys.stdout.flush()
os._exit(0)
"""


async def preempt(fixture: LocalEngineFixture, attempt: str, grace_s: float = 60.0) -> None:
    await fixture.engine.stop(AttemptId(attempt), StopOrder.for_preemption(grace_s))


@pytest.mark.torch
@torch
def test_preempted_gang_reaches_weights_of_uninterrupted_gang(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        launch = await fixture.make_launch("run.1", TRAIN, TRAIN)
        await fixture.engine.launch(launch)
        await fixture.wait_output("run.1", b"middle")
        await preempt(fixture, "run.1")
        ended = await fixture.wait_exits("run.1")
        assert [exit_status.kind for exit_status in ended] == [PREEMPTED] * 2
        saved = fixture.sink.checkpoints[-1]
        assert ended[0].reason == f"preempted at step {saved['step']}, checkpoint saved"
        second_launch = await fixture.make_launch("run.2", TRAIN, TRAIN)
        restore = RestorePoint(saved["step"], check_digest(saved["manifest"]))
        await fixture.engine.launch(
            replace(
                second_launch,
                replicas=tuple(replace(replica, restore=restore) for replica in second_launch.replicas),
            )
        )
        assert [exit_status.reason for exit_status in await fixture.wait_exits("run.2")] == ["finished"] * 2
        outputs = [fixture.sink.stream("run.2", rank, "stdout").split() for rank in (0, 1)]
        assert outputs[0] == outputs[1]
        resumed, undisturbed = outputs[0]  # and no word of the middle: it went on after it
        assert resumed == undisturbed

    run_scenario(scenario)


def test_server_command_preempts_like_engine(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", LOOP_SCRIPT)
        await fixture.wait_output("a.1", b"up")
        fixture.sink.grace_s, fixture.sink.preempt_requested, fixture.sink.stop_requested = 3600.0, True, True
        (ended,) = await fixture.wait_exits("a.1")
        (saved,) = fixture.sink.checkpoints
        assert ended.reason == f"preempted at step {saved['step']}, checkpoint saved"

    run_scenario(scenario)


def test_server_command_shortens_grace_of_engine(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT.replace("exit(0)", "print('deaf', flush=True)"))
        await fixture.wait_output("a.1", b"up")
        await preempt(fixture, "a.1", grace_s=3600)
        await fixture.wait_output("a.1", b"deaf")
        fixture.sink.grace_s, fixture.sink.stop_requested = 0.0, True
        assert await fixture.wait_exits("a.1") == [Exit(ExitKind.STOPPED, 137, "stopped by request")]

    run_scenario(scenario)


def test_script_that_obeys_before_its_replica_is_preempted(
    run_scenario: RunScenario,
) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", LOOP_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        await fixture.wait_output("a.1", b"up")
        os.kill(state.pid, signal.SIGSTOP)
        await preempt(fixture, "a.1")
        deadline = asyncio.get_running_loop().time() + 60
        while (script := process_tree.read_stat(state.child_pid)) is not None and script.state != "Z":
            assert asyncio.get_running_loop().time() < deadline, "the script did not obey"
            await asyncio.sleep(0.01)
        os.kill(state.pid, signal.SIGCONT)
        (ended,) = await fixture.wait_exits("a.1")
        (saved,) = fixture.sink.checkpoints
        assert (ended.kind, ended.reason) == (
            PREEMPTED,
            f"preempted at step {saved['step']}, checkpoint saved",
        )

    run_scenario(scenario)


def test_gang_saves_together_before_time_limit(run_scenario: RunScenario) -> None:
    script = LOOP_SCRIPT.replace("(1 + int(os.environ.get('RANK', '0')))", "50")

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script, script, time_limit_s=12.0)
        first, second = await fixture.wait_exits("a.1")
        (saved,) = fixture.sink.checkpoints
        assert first == Exit(
            ExitKind.TIME_LIMIT, 124, f"time limit of 12 s reached, saved at step {saved['step']}"
        )
        assert second == Exit(ExitKind.TIME_LIMIT, 124, "time limit of 12 s reached")
        assert b"time limit" not in fixture.sink.stream("a.1", 1, "stderr")  # saved once per gang

    run_scenario(scenario)


def test_run_that_ends_before_time_limit_has_its_own_exit(run_scenario: RunScenario) -> None:
    is_stop_requested = "os.path.exists(os.environ['HOPYARD_REPLICA_DIR'] + '/stop')"
    script = LOOP_SCRIPT + (
        f"    while turn == 3 and not {is_stop_requested}: time.sleep(0.01)\n"
        f"    if turn == 3: raise SystemExit({{code}})\n"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        for name, code in (("a.1", 0), ("b.1", 5)):
            await fixture.launch(name, script.format(code=code), time_limit_s=8.0)
        assert await fixture.wait_exits("a.1") == [Exit(ExitKind.EXIT_CODE, 0, "finished")]
        (failed,) = await fixture.wait_exits("b.1")
        assert (failed.kind, failed.code) == (ExitKind.EXIT_CODE, 5)

    run_scenario(scenario)


def test_stop_near_time_limit_is_reported_as_stop(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT.replace("exit(0)", "exit(3)"), time_limit_s=3600.0)
        await fixture.wait_output("a.1", b"up")
        ReplicaFolder(fixture.folder("a.1")).request_stop(
            StopOrder.for_time_limit(3000.0, "time limit of 3600 s reached")
        )
        await fixture.engine.stop(AttemptId("a.1"), StopOrder(60.0))
        assert await fixture.wait_exits("a.1") == [Exit(ExitKind.STOPPED, 3, "stopped by request")]

    run_scenario(scenario)


def test_run_that_finishes_during_preemption_succeeds(run_scenario: RunScenario) -> None:
    is_stop_requested = "os.path.exists(os.environ['HOPYARD_REPLICA_DIR'] + '/stop')"
    script = LOOP_SCRIPT + (
        f"    while turn == 3 and not {is_stop_requested}: time.sleep(0.01)\n"
        f"    if turn == 3: raise SystemExit({{code}})\n"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script.format(code=0))
        await fixture.launch("b.1", script.format(code=5))
        for name in ("a.1", "b.1"):
            await fixture.wait_output(name, b"up")
            await preempt(fixture, name, grace_s=3600)
        assert await fixture.wait_exits("a.1") == [Exit(ExitKind.EXIT_CODE, 0, "finished")]
        assert await fixture.wait_exits("b.1") == [
            Exit(PREEMPTED, 5, "preempted; it ended by itself: exit code 5")
        ]

    run_scenario(scenario)


def test_run_preempted_before_start_starts_nothing(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        launch = await fixture.make_launch(
            "a.1", "print('began')", code=fixture.sink.put_blob(b"no manifest")
        )
        await asyncio.to_thread(fixture.sink.stop_listening)
        await fixture.engine.launch(launch)
        await fixture.wait_for_state("a.1", lambda state: state.detail == "waiting for the server")
        await preempt(fixture, "a.1", grace_s=3600)
        await fixture.wait_for_state("a.1", lambda state: state.exit is not None)
        fixture.sink.restart_listening()
        fixture.publish_address()
        assert await fixture.wait_exits("a.1") == [Exit(PREEMPTED, 143, "preempted")]
        assert fixture.sink.stream("a.1", 0, "stdout") == b""

    run_scenario(scenario)


def test_checkpoint_of_preempted_run_waits_for_server_space(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.sink.disk_full_streams = 2
        await fixture.launch("a.1", LOOP_SCRIPT)
        await fixture.wait_output("a.1", b"up")
        await preempt(fixture, "a.1")
        await fixture.wait_exits("a.1")
        assert len(fixture.sink.checkpoints) == 1

    run_scenario(scenario)


@pytest.mark.parametrize("limited", [False, True])
def test_script_on_full_disk_is_asked_to_save_with_correct_reason(
    tmp_path: Path, run_scenario: RunScenario, limited: bool
) -> None:
    fill = (
        "    if turn == 3:\n        with open('ballast', 'wb', buffering=0) as file:\n"
        "            for size in (65536, 1):\n                try:\n"
        "                    while file.write(bytes(size)): pass\n"
        "                except OSError: pass\n"
    )
    script = LOOP_SCRIPT + fill

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script, time_limit_s=6.0 if limited else None)
        if not limited:
            await fixture.wait_for_state(
                "a.1",
                lambda _: (
                    (fixture.folder("a.1") / "work" / "ballast").exists()
                    and is_disk_full(free_disk_bytes(fixture.home.root))
                ),
            )
            fixture.sink.grace_s, fixture.sink.preempt_requested, fixture.sink.stop_requested = (
                3.0,
                True,
                True,
            )
        (ended,) = await fixture.wait_exits("a.1")
        kind, reason = (
            (ExitKind.TIME_LIMIT, "time limit of 6 s reached") if limited else (PREEMPTED, "preempted")
        )
        assert (ended.kind, ended.reason) == (
            kind,
            f"{reason}; no checkpoint could be saved: the disk was full",
        )

    with small_disk(tmp_path, 80 * 1024**2):
        run_scenario(scenario)

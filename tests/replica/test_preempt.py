"""A run that makes room goes on later as if nothing had happened."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace
from datetime import timedelta

import pytest

from engines.bench import LocalBench
from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.ids import AttemptId, check_digest
from hopyard.domain.launch import Restore
from hopyard.domain.resources import Resources
from hopyard.testing.engine_contract import LOOPS, WAITS
from replica.conftest import Play

torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
PREEMPTED = ExitKind.PREEMPTED

# Batches are turns, and only the end of an epoch saves: it is preempted in the middle of one. It leaves by os._exit where it finishes,
# because PyTorch aborts now and then as the interpreter ends (see test_torch.py).
TRAIN = """
import os, sys, time, torch, torch.distributed as dist, hopyard as hop
torch.set_num_threads(1)
p = hop.params(slow=0.0)
dist.init_process_group('gloo')
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
hop.bind(net=net, optimizer=optimizer)
for epoch in hop.loop(range(2)):
    for batch in hop.loop(range(20), name='batch', every=1000):
        torch.manual_seed(1000 * epoch + 10 * batch + rank)
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
        if epoch == 1 and batch == 4: print('middle', flush=True)
        time.sleep(p.slow if epoch else 0)
dist.barrier()
print(sum(w.double().sum() for w in net.parameters()).item().hex())
sys.stdout.flush()
os._exit(0)
"""


async def preempt(bench: LocalBench, attempt: str, grace_s: float = 60.0) -> None:
    await bench.engine.stop(AttemptId(attempt), grace=timedelta(seconds=grace_s), preempt=True)


@pytest.mark.torch
@torch
def test_a_preempted_gang_ends_with_the_weights_of_an_undisturbed_one(play: Play) -> None:
    async def scenario(bench: LocalBench) -> None:
        scripts, asked = [TRAIN, TRAIN], Resources(500)
        await bench.launch("whole.1", *scripts, resources=asked)
        slow = await bench.compose("run.1", *scripts, resources=asked)
        await bench.engine.launch(replace(slow, replicas=tuple(replace(one, params={"slow": 0.1}) for one in slow.replicas)))
        await bench.output("run.1", b"middle")
        await preempt(bench, "run.1")
        ended = await bench.exits("run.1")
        assert [one.kind for one in ended] == [PREEMPTED] * 2
        last = [saved for saved in bench.sink.checkpoints if saved["attempt"] == "run.1"][-1]
        assert ended[0].reason == f"preempted at step {last['step']}, checkpoint saved"
        again = await bench.compose("run.2", *scripts, resources=asked)
        restore = Restore(last["step"], check_digest(last["manifest"]))
        await bench.engine.launch(replace(again, replicas=tuple(replace(one, restore=restore) for one in again.replicas)))
        assert [one.reason for one in await bench.exits("run.2")] == ["finished"] * 2
        assert [one.reason for one in await bench.exits("whole.1")] == ["finished"] * 2
        for rank in range(2):
            weights = bench.sink.stream("whole.1", rank, "stdout").split()[-1]
            assert weights.startswith((b"0x", b"-0x"))
            assert bench.sink.stream("run.2", rank, "stdout").split()[-1] == weights
        assert b"middle" not in bench.sink.stream("run.2", 0, "stdout"), "it went on in the middle of the epoch"

    play(scenario)


def test_the_server_s_word_preempts_as_an_engine_does(play: Play) -> None:
    async def scenario(bench: LocalBench) -> None:
        await bench.launch("a.1", LOOPS)
        await bench.output("a.1", b"up")
        bench.sink.grace_s, bench.sink.preempt_requested, bench.sink.stop_requested = 3600.0, True, True
        (ended,) = await bench.exits("a.1")
        (saved,) = bench.sink.checkpoints
        assert ended.reason == f"preempted at step {saved['step']}, checkpoint saved"

    play(scenario)


def test_the_server_s_word_gives_less_time_than_the_engine_did(play: Play) -> None:
    async def scenario(bench: LocalBench) -> None:
        await bench.launch("a.1", WAITS.replace("exit(0)", "print('deaf', flush=True)"))
        await bench.output("a.1", b"up")
        await preempt(bench, "a.1", grace_s=3600)
        await bench.output("a.1", b"deaf")
        bench.sink.grace_s, bench.sink.stop_requested = 0.0, True
        assert await bench.exits("a.1") == [Exit(ExitKind.STOPPED, 137, "stopped by request")]

    play(scenario)


def test_a_run_that_finishes_while_it_is_waited_for_has_finished(play: Play) -> None:
    asked = "os.path.exists(os.environ['HOPYARD_REPLICA_DIR'] + '/stop')"
    script = LOOPS + f"    while turn == 3 and not {asked}: time.sleep(0.01)\n    if turn == 3: raise SystemExit({{code}})\n"

    async def scenario(bench: LocalBench) -> None:
        await bench.launch("a.1", script.format(code=0))
        await bench.launch("b.1", script.format(code=5))
        for name in ("a.1", "b.1"):
            await bench.output(name, b"up")
            await preempt(bench, name, grace_s=3600)
        assert await bench.exits("a.1") == [Exit(ExitKind.EXIT_CODE, 0, "finished")]
        assert await bench.exits("b.1") == [Exit(PREEMPTED, 5, "preempted; it ended by itself: exit code 5")]

    play(scenario)


def test_preempted_before_it_began_nothing_is_started(play: Play) -> None:
    async def scenario(bench: LocalBench) -> None:
        launch = await bench.compose("a.1", "print('began')", code=bench.sink.put_blob(b"no manifest"))
        await asyncio.to_thread(bench.sink.take_away)
        await bench.engine.launch(launch)
        await bench.told("a.1", lambda state: state.detail == "waiting for the server")
        await preempt(bench, "a.1", grace_s=3600)
        await bench.told("a.1", lambda state: state.exit is not None)
        bench.sink.bring_back()
        bench.tell_address()
        assert await bench.exits("a.1") == [Exit(PREEMPTED, 143, "preempted")]
        assert bench.sink.stream("a.1", 0, "stdout") == b""

    play(scenario)


def test_a_checkpoint_of_a_preempted_run_waits_for_space_on_the_server(play: Play) -> None:
    async def scenario(bench: LocalBench) -> None:
        bench.sink.full_for = 2
        await bench.launch("a.1", LOOPS)
        await bench.output("a.1", b"up")
        await preempt(bench, "a.1")
        await bench.exits("a.1")
        assert len(bench.sink.checkpoints) == 1

    play(scenario)

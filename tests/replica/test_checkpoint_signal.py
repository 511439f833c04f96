"""A script without safe points gets SIGUSR1 first if it handles it, then SIGTERM."""

from __future__ import annotations

from hopyard.domain.attempt import ExitKind
from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import StopOrder
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

# it saves; its own child, a loader of data, only inherited the handler
TRAINING = """
import multiprocessing, signal, sys, time
def save(*_):
    is_child = multiprocessing.parent_process() is not None
    print("the child must not save" if is_child else "saved", flush=True)
    if not is_child:
        other.kill()
        sys.exit(0)

signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda *_: print("the end", flush=True))
other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
other.start()
print("up", flush=True)
while True:
    time.sleep(600)
"""
# a launcher that handles nothing
SAVING = f"""
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-u", "-c", {TRAINING!r}]).returncode)
"""
# without a handler SIGUSR1 would end it at once, with another code
PLAIN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("up", flush=True)
time.sleep(600)
"""


def test_script_saves_at_sigusr1_and_is_preempted(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        for attempt, script in (("a.1", SAVING), ("b.1", PLAIN)):
            await fixture.launch(attempt, script)
            await fixture.wait_output(attempt, b"up")
            await fixture.engine.stop(AttemptId(attempt), StopOrder.for_preemption(3600.0))
        (saved,) = await fixture.wait_exits("a.1")
        assert (saved.kind, saved.reason) == (ExitKind.PREEMPTED, "preempted"), "exit 0 is no success"
        assert fixture.sink.stream("a.1", 0, "stdout") == b"up\nsaved\n"
        (plain,) = await fixture.wait_exits("b.1")
        assert (plain.kind, plain.code) == (ExitKind.PREEMPTED, 3)

    run_scenario(scenario)

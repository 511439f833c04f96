"""The conformance suite of engines. Every engine passes it with real processes.

Subclass `EngineContract`, provide `open_fixture`, and inherit every case; there are no exemptions. A fixture
is an engine on nodes that have Python. Its replicas can reach `fixture.sink`, a server from their view.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ExitKind, ReplicaPhase, gang_state
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, check_digest, split_attempt
from hopyard.domain.launch import Launch, ReplicaLaunch
from hopyard.domain.replica import StopOrder
from hopyard.domain.resources import Resources
from hopyard.domain.run import Environment
from hopyard.errors import LaunchFailed
from hopyard.interfaces.engine import Engine
from hopyard.testing.fake_server import FakeServer

TIMEOUT_S = 90.0  # for anything that must happen eventually; the suite measures no speed
OBSERVE_INTERVAL_S = 0.02
WAITING_SCRIPT = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('up', flush=True); "
    "time.sleep(600)"
)
LOOP_SCRIPT = """
import hopyard as hop, os, time
seen = []
hop.bind(seen=seen)
for turn in hop.loop(range(100_000), every=100_000):
    seen.append(turn)
    if turn == 2:
        print('up', flush=True)
    time.sleep(0.002 * (1 + int(os.environ.get('RANK', '0'))))
"""
FREEZING_SCRIPT = LOOP_SCRIPT + "    if turn == 3: os.kill(os.getpid(), 19)\n"
SLOW_SCRIPT = LOOP_SCRIPT + "    if turn == 3: time.sleep(600)\n"
INTERRUPTED_SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
try:
    print("up", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saved", flush=True)
    time.sleep(600)
"""
SIGTERM_IGNORING_SCRIPT = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
    "time.sleep(600)"
)


@dataclass(slots=True)
class EngineFixture:
    """An engine under test. publish_address: publishes the new address of the sink to replicas after a
    restart."""

    engine: Engine
    sink: FakeServer
    publish_address: Callable[[], None]
    environment: Environment = field(default_factory=Environment)

    async def node(self) -> Node:
        return (await self.engine.observe()).nodes[0]

    async def make_launch(
        self,
        attempt: str,
        *scripts: str,
        resources: Resources | None = None,
        command: tuple[str, ...] | None = None,
        node: str | None = None,
        time_limit_s: float | None = None,
        code: str | None = None,
        env: Mapping[str, str] | None = None,
        gpus: tuple[int, ...] = (),
        optional: tuple[int, ...] = (),
    ) -> Launch:
        """Returns the launch of a gang with one replica per script (the text of a Python program), or one
        replica with `command`. optional: ranks that are not essential."""
        request = resources or Resources(cpu_milli=500)
        commands = [command] if command else [("python", "-c", script) for script in scripts]
        attempt_id_, run = AttemptId(attempt), split_attempt(AttemptId(attempt))[0]
        gang = Gang(GangId(run), (Role("worker", len(commands), request),), datetime.now(UTC))
        node_id = NodeId(node) if node else (await self.node()).id
        placement = Placement(gang, tuple(Assignment(rank, node_id, gpus) for rank in range(len(commands))))
        replicas = tuple(
            ReplicaLaunch(
                attempt=attempt_id_,
                run=RunId(run),
                run_name="tester/contract/1",
                rank=rank,
                role="worker",
                role_rank=rank,
                world_size=len(commands),
                command=argv,
                resources=request,
                server_url=self.sink.url,
                token=f"token-of-{attempt}",
                code=None if code is None else check_digest(code),
                env=env or {},
                environment=self.environment,
                time_limit_s=time_limit_s,
                essential=rank not in optional,
            )
            for rank, argv in enumerate(commands)
        )
        return Launch(attempt_id_, placement, replicas)

    async def launch(self, attempt: str, *scripts: str, **rest: object) -> None:
        await self.engine.launch(await self.make_launch(attempt, *scripts, **rest))  # type: ignore[arg-type]

    async def observe_until(self, predicate: Callable[[Observation], bool]) -> Observation:
        """Polls the engine until `predicate` holds for an observation."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            observation = await self.engine.observe()
            if predicate(observation):
                return observation
            assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s; observed {observation.attempts}"
            await asyncio.sleep(OBSERVE_INTERVAL_S)

    async def wait_exits(self, attempt: str) -> list[Exit]:
        """Waits until every replica has exited; returns the exits in rank order."""

        def has_ended(observation: Observation) -> bool:
            status = status_of(observation, attempt)
            return status is not None and all(replica.exit is not None for replica in status.replicas)

        status = status_of(await self.observe_until(has_ended), attempt)
        assert status is not None
        return [
            replica.exit
            for replica in sorted(status.replicas, key=lambda replica: replica.rank)
            if replica.exit is not None
        ]

    async def wait_output(self, attempt: str, text: bytes, *, rank: int = 0) -> None:
        """Waits until `text` is in a replica's stdout; polls the engine meanwhile."""
        await self.observe_until(lambda _: text in self.sink.stream(attempt, rank, "stdout"))


def status_of(observation: Observation, attempt: str) -> AttemptStatus | None:
    return next((status for status in observation.attempts if status.attempt == attempt), None)


Scenario = Callable[[EngineFixture], Awaitable[None]]


class EngineContract(ABC):
    """Cases that every engine must pass."""

    @abstractmethod
    def open_fixture(self, folder: Path) -> AbstractAsyncContextManager[EngineFixture]:
        """Yields a new engine with nothing running; `folder` is empty. Leaving the context ends everything
        that was started."""

    def run_scenario(self, folder: Path, scenario: Scenario) -> None:
        async def run() -> None:
            async with self.open_fixture(folder) as fixture:
                await scenario(fixture)

        asyncio.run(run())

    def test_observe_returns_nodes(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            observation = await fixture.engine.observe()
            assert observation.attempts == ()
            assert all(
                node.engine == fixture.engine.name
                and node.ready
                and node.cpu_milli > 0
                and node.memory_bytes > 0
                for node in observation.nodes
            )
            assert len(observation.nodes) == len({node.id for node in observation.nodes}) >= 1

        self.run_scenario(tmp_path, scenario)

    def test_output_is_complete_before_exit(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", "import sys; print('out'); print('err', file=sys.stderr)")
            assert await fixture.wait_exits("a.1") == [Exit(ExitKind.EXIT_CODE, 0, "finished")]
            assert fixture.sink.stream("a.1", 0, "stdout") == b"out\n"
            assert fixture.sink.stream("a.1", 0, "stderr") == b"err\n"
            assert fixture.sink.finals["a.1", 0]["exit"]["code"] == 0

        self.run_scenario(tmp_path, scenario)

    def test_exit_code_and_last_error_line(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", "raise SystemExit(3)")
            await fixture.launch("b.1", "raise ValueError('no such thing')")
            assert await fixture.wait_exits("a.1") == [Exit(ExitKind.EXIT_CODE, 3, "exit code 3")]
            assert await fixture.wait_exits("b.1") == [
                Exit(ExitKind.EXIT_CODE, 1, "exit code 1: ValueError: no such thing")
            ]

        self.run_scenario(tmp_path, scenario)

    def test_killed_by_signal(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
            (exit,) = await fixture.wait_exits("a.1")
            assert (exit.kind, exit.code) == (ExitKind.SIGNAL, 137)
            assert exit.reason.startswith("killed by signal 9 (SIGKILL)")

        self.run_scenario(tmp_path, scenario)

    def test_gang_knows_its_ranks_and_master_address(self, tmp_path: Path) -> None:
        script = (
            "import os; print(*(os.environ[k] for k in "
            "('RANK','LOCAL_RANK','WORLD_SIZE','ROLE_RANK','MASTER_ADDR','MASTER_PORT')))"
        )

        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", script, script, script)
            assert all(exit.is_success for exit in await fixture.wait_exits("a.1"))
            outputs = [fixture.sink.stream("a.1", rank, "stdout").decode().split() for rank in range(3)]
            assert [output[0] for output in outputs] == ["0", "1", "2"]
            assert {output[2] for output in outputs} == {"3"}
            assert len({(output[4], output[5]) for output in outputs}) == 1

        self.run_scenario(tmp_path, scenario)

    def test_gangs_have_different_master_addresses(self, tmp_path: Path) -> None:
        script = (
            "import os; print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'], flush=True); "
            + WAITING_SCRIPT
        )

        async def scenario(fixture: EngineFixture) -> None:
            for name in ("a.1", "b.1", "c.1"):
                await fixture.launch(name, script, script)
            for name in ("a.1", "b.1", "c.1"):
                await fixture.wait_output(name, b"up")
            assert len({fixture.sink.stream(name, 0, "stdout") for name in ("a.1", "b.1", "c.1")}) == 3

        self.run_scenario(tmp_path, scenario)

    def test_launch_is_idempotent_during_and_after_attempt(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            long_launch, short_launch = (
                await fixture.make_launch("a.1", "print('begun', flush=True); " + WAITING_SCRIPT),
                await fixture.make_launch("b.1", "print('begun')"),
            )
            await asyncio.gather(fixture.engine.launch(long_launch), fixture.engine.launch(long_launch))
            await fixture.engine.launch(short_launch)
            await fixture.wait_exits("b.1")
            await fixture.engine.launch(short_launch)
            await fixture.wait_output("a.1", b"up")
            await fixture.engine.launch(long_launch)
            assert await fixture.wait_exits("b.1") == [Exit(ExitKind.EXIT_CODE, 0, "finished")]
            await fixture.engine.stop(AttemptId("a.1"), StopOrder(30.0))
            await fixture.wait_exits("a.1")
            assert fixture.sink.stream("a.1", 0, "stdout").count(b"begun") == 1
            assert fixture.sink.stream("b.1", 0, "stdout").count(b"begun") == 1

        self.run_scenario(tmp_path, scenario)

    def test_stop_sends_sigterm_first(self, tmp_path: Path) -> None:
        script = (
            "import signal, sys, time\ndef end(*_):\n print('saved', flush=True); sys.exit(0)\n"
            "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"
        )

        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", script)
            await fixture.wait_output("a.1", b"up")
            await fixture.engine.stop(AttemptId("a.1"), StopOrder(60.0))
            (exit,) = await fixture.wait_exits("a.1")
            assert (exit.kind, exit.reason) == (ExitKind.STOPPED, "stopped by request")
            assert b"saved" in fixture.sink.stream("a.1", 0, "stdout")

        self.run_scenario(tmp_path, scenario)

    def test_stop_sends_other_signals(self, tmp_path: Path) -> None:
        """A second stop with another signal sends that one, too."""

        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", INTERRUPTED_SCRIPT)
            await fixture.wait_output("a.1", b"up")
            stop = partial(fixture.engine.stop, AttemptId("a.1"))
            await stop(StopOrder.for_request(600.0, "INT"))
            await fixture.wait_output("a.1", b"saved")
            await stop(StopOrder(600.0))  # without a signal of its own
            await stop(StopOrder.for_request(600.0, "USR1"))
            (exit,) = await fixture.wait_exits("a.1")
            assert (exit.kind, exit.code) == (ExitKind.STOPPED, 3), exit
            assert exit.reason == "stopped by request with SIGUSR1"

        self.run_scenario(tmp_path, scenario)

    def test_stop_kills_script_that_ignores_sigterm(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", SIGTERM_IGNORING_SCRIPT)
            await fixture.wait_output("a.1", b"up")
            await fixture.engine.stop(AttemptId("a.1"), StopOrder(0.2))
            (exit,) = await fixture.wait_exits("a.1")
            assert (exit.kind, exit.code) == (ExitKind.STOPPED, 137)

        self.run_scenario(tmp_path, scenario)

    def test_preempted_script_saves_at_safe_point(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", LOOP_SCRIPT)
            await fixture.wait_output("a.1", b"up")
            await fixture.engine.stop(AttemptId("a.1"), StopOrder.for_preemption(60.0))
            (exit,) = await fixture.wait_exits("a.1")
            (saved,) = fixture.sink.checkpoints
            assert (exit.kind, exit.reason) == (
                ExitKind.PREEMPTED,
                f"preempted at step {saved['step']}, checkpoint saved",
            )
            assert saved["step"] >= 3

        self.run_scenario(tmp_path, scenario)

    def test_preempted_gang_ends_at_same_iteration(self, tmp_path: Path) -> None:
        # The replicas have different speeds; if one ended too early, the others would stop waiting for it.
        script = LOOP_SCRIPT + "    print('turn', turn, flush=True)\n"

        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", script, script, script)
            for rank in range(3):
                await fixture.wait_output("a.1", b"up", rank=rank)
            await fixture.engine.stop(AttemptId("a.1"), StopOrder.for_preemption(60.0))
            exits = await fixture.wait_exits("a.1")
            assert [exit.kind for exit in exits] == [ExitKind.PREEMPTED] * 3
            last = {fixture.sink.stream("a.1", rank, "stdout").split()[-1] for rank in range(3)}
            assert len(last) == 1
            (saved,) = fixture.sink.checkpoints
            assert saved["step"] == int(last.pop()) + 1
            assert exits[0].reason == f"preempted at step {saved['step']}, checkpoint saved"

        self.run_scenario(tmp_path, scenario)

    def test_preempted_script_without_safe_points_gets_sigterm_then_sigkill(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", WAITING_SCRIPT)
            await fixture.launch("b.1", SIGTERM_IGNORING_SCRIPT)
            await fixture.wait_output("a.1", b"up")
            await fixture.wait_output("b.1", b"up")
            await fixture.engine.stop(AttemptId("a.1"), StopOrder.for_preemption(3600.0))
            await fixture.engine.stop(AttemptId("b.1"), StopOrder.for_preemption(0.2))
            assert await fixture.wait_exits("a.1") == [Exit(ExitKind.PREEMPTED, 0, "preempted")]
            assert await fixture.wait_exits("b.1") == [Exit(ExitKind.PREEMPTED, 137, "preempted")]

        self.run_scenario(tmp_path, scenario)

    def test_frozen_script_is_killed_after_preemption_grace(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", FREEZING_SCRIPT)
            await fixture.wait_output("a.1", b"up")
            await fixture.engine.stop(AttemptId("a.1"), StopOrder.for_preemption(0.5))
            (exit,) = await fixture.wait_exits("a.1")
            assert exit == Exit(ExitKind.PREEMPTED, 137, "preempted: it reached no safe point within 0.5 s")

        self.run_scenario(tmp_path, scenario)

    def test_stop_does_not_wait_for_safe_point(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", SLOW_SCRIPT)
            await fixture.wait_output("a.1", b"up")
            await fixture.engine.stop(AttemptId("a.1"), StopOrder.for_preemption(3600.0))
            await fixture.engine.stop(AttemptId("a.1"), StopOrder(3600.0))
            (exit,) = await fixture.wait_exits("a.1")
            assert (exit.kind, exit.code) == (ExitKind.STOPPED, 143)

        self.run_scenario(tmp_path, scenario)

    def test_stop_directly_after_launch(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT)
            await fixture.engine.stop(AttemptId("a.1"), StopOrder(30.0))
            exits = await fixture.wait_exits("a.1")
            assert {exit.kind for exit in exits} == {ExitKind.STOPPED}, exits

        self.run_scenario(tmp_path, scenario)

    def test_repeated_stops_directly_after_launch(self, tmp_path: Path) -> None:
        """Some of the orders arrive while a replica starts, and some while it already reports its exit."""

        async def scenario(fixture: EngineFixture) -> None:
            for number in range(1, 21):
                attempt = f"a.{number}"
                await fixture.launch(attempt, WAITING_SCRIPT, WAITING_SCRIPT)
                for _ in range(6):
                    await fixture.engine.stop(AttemptId(attempt), StopOrder(30.0))
                exits = await fixture.wait_exits(attempt)
                assert {exit.kind for exit in exits} == {ExitKind.STOPPED}, exits

        self.run_scenario(tmp_path, scenario)

    def test_stop_and_forget_of_unknown_or_ended_attempt_succeed(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.engine.stop(AttemptId("missing.1"), StopOrder(1.0))
            await fixture.engine.forget(AttemptId("missing.1"))
            await fixture.launch("a.1", "pass")
            exits = await fixture.wait_exits("a.1")
            await fixture.engine.stop(AttemptId("a.1"), StopOrder(1.0))
            assert await fixture.wait_exits("a.1") == exits

        self.run_scenario(tmp_path, scenario)

    def test_failed_replica_ends_gang(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", WAITING_SCRIPT, "raise SystemExit(7)")
            exits = await fixture.wait_exits("a.1")
            assert exits[1] == Exit(ExitKind.EXIT_CODE, 7, "exit code 7")
            assert exits[0].kind in (ExitKind.PEER_FAILED, ExitKind.STOPPED)
            status = status_of(await fixture.engine.observe(), "a.1")
            assert status is not None
            phase, gang_exit = gang_state(status, size=2)
            assert phase is AttemptPhase.FAILED
            assert gang_exit == Exit(ExitKind.EXIT_CODE, 7, "replica 1: exit code 7")

        self.run_scenario(tmp_path, scenario)

    def test_exit_of_optional_replica_does_not_end_gang(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch(
                "a.1",
                WAITING_SCRIPT,
                "raise SystemExit(7)",
                "import os; os.kill(os.getpid(), 9)",
                optional=(1, 2),
            )
            await fixture.wait_output("a.1", b"up")

            def both_ended(observation: Observation) -> bool:
                status = status_of(observation, "a.1")
                return (
                    status is not None and sum(replica.exit is not None for replica in status.replicas) == 2
                )

            observation = await fixture.observe_until(both_ended)
            status = status_of(await fixture.engine.observe(), "a.1")
            assert status == status_of(observation, "a.1")
            assert status is not None
            assert gang_state(status, size=3, optional=(1, 2)) == (AttemptPhase.RUNNING, None)

        self.run_scenario(tmp_path, scenario)

    def test_gang_ends_with_last_essential_replica(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch(
                "a.1",
                "print('done')",
                WAITING_SCRIPT,
                "print('done too')",
                "raise SystemExit(7)",
                optional=(1, 3),
            )
            exits = await fixture.wait_exits("a.1")
            assert [exit.is_success for exit in exits] == [True, False, True, False]
            assert exits[1].kind is ExitKind.STOPPED
            status = status_of(await fixture.engine.observe(), "a.1")
            assert status is not None
            assert gang_state(status, size=4, optional=(1, 3)) == (
                AttemptPhase.SUCCEEDED,
                Exit(ExitKind.EXIT_CODE, 0, "finished"),
            )

        self.run_scenario(tmp_path, scenario)

    def test_optional_replica_ends_after_essential_replicas_with_the_same_signal(
        self, tmp_path: Path
    ) -> None:
        template = (
            "import signal, sys, time\ndef end(*_):\n print('asked', time.time(), flush=True); "
            "time.sleep({0}); print('left', time.time(), flush=True); sys.exit(0)\n"
        )
        script = template + "signal.signal(signal.SIGUSR1, end); print('up', flush=True); time.sleep(600)"

        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", script.format(0), script.format(0.5), optional=(0,))
            for rank in range(2):
                await fixture.wait_output("a.1", b"up", rank=rank)
            await fixture.engine.stop(AttemptId("a.1"), StopOrder.for_request(60.0, "USR1"))
            assert [exit.kind for exit in await fixture.wait_exits("a.1")] == [ExitKind.STOPPED] * 2
            times = [
                dict(
                    line.split()
                    for line in fixture.sink.stream("a.1", rank, "stdout").decode().splitlines()[1:]
                )
                for rank in range(2)
            ]
            assert float(times[0]["asked"]) > float(times[1]["left"])

        self.run_scenario(tmp_path, scenario)

    def test_observe_returns_complete_attempts(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT)

            def all_running(observation: Observation) -> bool:
                status = status_of(observation, "a.1")
                return status is not None and all(
                    replica.phase is ReplicaPhase.RUNNING for replica in status.replicas
                )

            observation = await fixture.observe_until(all_running)
            status = status_of(observation, "a.1")
            assert status is not None
            assert sorted(replica.rank for replica in status.replicas) == [0, 1]
            assert await fixture.engine.observe() == await fixture.engine.observe()

        self.run_scenario(tmp_path, scenario)

    def test_forgotten_attempt_is_not_observed(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", "pass")
            await fixture.wait_exits("a.1")
            await fixture.engine.forget(AttemptId("a.1"))
            assert status_of(await fixture.engine.observe(), "a.1") is None

        self.run_scenario(tmp_path, scenario)

    def test_failed_launch_leaves_nothing(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            launch = await fixture.make_launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT, node="no-such-node")
            with pytest.raises(LaunchFailed):
                await fixture.engine.launch(launch)
            assert status_of(await fixture.engine.observe(), "a.1") is None

        self.run_scenario(tmp_path, scenario)

    def test_exit_names_missing_command(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", command=("no-such-program", "--fast"))
            (exit,) = await fixture.wait_exits("a.1")
            assert (exit.kind, exit.code) == (ExitKind.PREPARE_FAILED, 127)
            assert "no-such-program" in exit.reason

        self.run_scenario(tmp_path, scenario)

    def test_time_limit_ends_script(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", WAITING_SCRIPT, time_limit_s=0.5)
            await fixture.launch("b.1", SIGTERM_IGNORING_SCRIPT, time_limit_s=1.0)
            assert await fixture.wait_exits("a.1") == [
                Exit(ExitKind.TIME_LIMIT, 124, "time limit of 0.5 s reached")
            ]
            assert await fixture.wait_exits("b.1") == [
                Exit(ExitKind.TIME_LIMIT, 124, "time limit of 1 s reached")
            ]

        self.run_scenario(tmp_path, scenario)

    def test_script_with_safe_points_saves_before_time_limit(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", LOOP_SCRIPT, time_limit_s=8.0)
            (exit,) = await fixture.wait_exits("a.1")
            saved = fixture.sink.checkpoints[-1]
            assert saved["step"] > 0
            assert exit == Exit(
                ExitKind.TIME_LIMIT, 124, f"time limit of 8 s reached, saved at step {saved['step']}"
            )
            stderr = fixture.sink.stream("a.1", 0, "stderr").decode()
            notice = (
                r"hopyard: the time limit of 8 s is reached in (\S+) s: it saves a checkpoint at its next "
            )
            found = re.search(notice + "safe point", stderr)
            assert found is not None and float(found[1]) <= 2  # less than 2 s on a loaded machine
            assert f"the time limit is reached: the checkpoint of step {saved['step']} is saved" in stderr
            assert b'"kind":"time-limit"' in fixture.sink.stream("a.1", 0, "events")

        self.run_scenario(tmp_path, scenario)

    def test_script_without_reached_safe_point_ends_at_time_limit(self, tmp_path: Path) -> None:
        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", SLOW_SCRIPT, time_limit_s=4.0)
            reason = "time limit of 4 s reached: it reached no safe point within 1 s"
            assert await fixture.wait_exits("a.1") == [Exit(ExitKind.TIME_LIMIT, 124, reason)]

        self.run_scenario(tmp_path, scenario)

    def test_memory_limit_ends_only_its_run(self, tmp_path: Path) -> None:
        allocating_script = (
            "import time\nheld=[]\nfor _ in range(64):\n"
            " held.append(b'x'*(16*1024*1024)); time.sleep(0.01)\ntime.sleep(600)"
        )

        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("b.1", WAITING_SCRIPT)
            await fixture.wait_output("b.1", b"up")
            await fixture.launch(
                "a.1", allocating_script, resources=Resources(cpu_milli=500, memory_bytes=128 * 1024**2)
            )
            (exit,) = await fixture.wait_exits("a.1")
            assert (exit.kind, exit.code) == (ExitKind.OUT_OF_MEMORY, 137)
            assert exit.reason.startswith("out of memory: used ")
            assert exit.reason.endswith(" of its 128 MiB memory")
            other = status_of(await fixture.engine.observe(), "b.1")
            assert other is not None
            assert other.replicas[0].phase is ReplicaPhase.RUNNING

        self.run_scenario(tmp_path, scenario)

    def test_output_resumes_after_server_outage(self, tmp_path: Path) -> None:
        script = "import time\nfor i in range(200):\n print(f'line {i}', flush=True); time.sleep(0.01)"

        async def scenario(fixture: EngineFixture) -> None:
            await fixture.launch("a.1", script)
            await fixture.wait_output("a.1", b"line 20\n")
            await asyncio.to_thread(fixture.sink.stop_listening)
            await fixture.observe_until(lambda _: True)
            await asyncio.sleep(0.3)  # not a wait for an event: the duration of the outage
            fixture.sink.restart_listening()
            fixture.publish_address()
            assert [exit.is_success for exit in await fixture.wait_exits("a.1")] == [True]
            assert fixture.sink.stream("a.1", 0, "stdout") == b"".join(b"line %d\n" % i for i in range(200))

        self.run_scenario(tmp_path, scenario)

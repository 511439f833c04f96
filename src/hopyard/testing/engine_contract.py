"""The conformance suite of engines. Every engine passes it, against the real thing.

Subclass `EngineContract`, give `open_bench`, and inherit every case; no exemptions. A bench is an engine on
nodes that have Python, with replicas that can reach `bench.sink`, a server as replicas see one.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hopyard.domain.attempt import AttemptPhase, AttemptStatus, Exit, ExitKind, ReplicaPhase, gang_state
from hopyard.domain.cluster import Node, Observation
from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, check_digest, split_attempt
from hopyard.domain.launch import Launch, ReplicaLaunch
from hopyard.domain.resources import Resources
from hopyard.domain.run import Environment
from hopyard.errors import LaunchFailed
from hopyard.interfaces.engine import Engine
from hopyard.testing.fake_server import FakeServer

TIMEOUT_S = 90.0  # for anything that must happen at all; nothing here measures speed
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
    time.sleep(0.002 * (1 + int(os.environ['RANK'])))
"""
FREEZING_SCRIPT = LOOP_SCRIPT + "    if turn == 3: os.kill(os.getpid(), 19)\n"
SLOW_SCRIPT = LOOP_SCRIPT + "    if turn == 3: time.sleep(600)\n"
SIGTERM_IGNORING_SCRIPT = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
    "time.sleep(600)"
)


@dataclass(slots=True)
class EngineFixture:
    """An engine under test. publish_address: lets replicas know where the sink is after it came back."""

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
        """A gang with one replica per script (the text of a Python program), or one replica with `command`.
        optional: ranks that are not essential."""
        asked = resources or Resources(cpu_milli=500)
        commands = [command] if command else [("python", "-c", script) for script in scripts]
        name, run = AttemptId(attempt), split_attempt(AttemptId(attempt))[0]
        gang = Gang(GangId(run), (Role("worker", len(commands), asked),), datetime.now(UTC))
        where = NodeId(node) if node else (await self.node()).id
        placement = Placement(gang, tuple(Assignment(rank, where, gpus) for rank in range(len(commands))))
        replicas = tuple(
            ReplicaLaunch(
                attempt=name,
                run=RunId(run),
                run_name="tester/contract/1",
                rank=rank,
                role="worker",
                role_rank=rank,
                world_size=len(commands),
                command=words,
                resources=asked,
                server_url=self.sink.url,
                token=f"token-of-{attempt}",
                code=None if code is None else check_digest(code),
                env=env or {},
                environment=self.environment,
                time_limit_s=time_limit_s,
                essential=rank not in optional,
            )
            for rank, words in enumerate(commands)
        )
        return Launch(name, placement, replicas)

    async def launch(self, attempt: str, *scripts: str, **rest: object) -> None:
        await self.engine.launch(await self.make_launch(attempt, *scripts, **rest))  # type: ignore[arg-type]

    async def observe_until(self, predicate: Callable[[Observation], bool]) -> Observation:
        """Look at the engine until `predicate` holds of an observation."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            seen = await self.engine.observe()
            if predicate(seen):
                return seen
            assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s; the engine sees {seen.attempts}"
            await asyncio.sleep(OBSERVE_INTERVAL_S)

    async def wait_exits(self, attempt: str) -> list[Exit]:
        """How every replica ended, in rank order."""
        seen = await self.observe_until(
            lambda o: (s := status_of(o, attempt)) is not None and all(r.exit is not None for r in s.replicas)
        )
        status = status_of(seen, attempt)
        assert status is not None
        return [
            replica.exit
            for replica in sorted(status.replicas, key=lambda r: r.rank)
            if replica.exit is not None
        ]

    async def wait_output(self, attempt: str, text: bytes, *, rank: int = 0) -> None:
        """Wait until a replica has said `text` on stdout, keeping the engine looked at."""
        await self.observe_until(lambda _: text in self.sink.stream(attempt, rank, "stdout"))


def status_of(observation: Observation, attempt: str) -> AttemptStatus | None:
    return next((status for status in observation.attempts if status.attempt == attempt), None)


Scenario = Callable[[EngineFixture], Awaitable[None]]


class EngineContract(ABC):
    """Cases that every engine must pass."""

    @abstractmethod
    def open_fixture(self, folder: Path) -> AbstractAsyncContextManager[EngineFixture]:
        """A fresh engine with nothing running; `folder` is empty.
        Leaving it ends everything that was started."""

    def run_scenario(self, folder: Path, scenario: Scenario) -> None:
        async def whole() -> None:
            async with self.open_fixture(folder) as bench:
                await scenario(bench)

        asyncio.run(whole())

    def test_nodes_are_told(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            seen = await bench.engine.observe()
            assert seen.attempts == ()
            assert all(
                node.engine == bench.engine.name
                and node.ready
                and node.cpu_milli > 0
                and node.memory_bytes > 0
                for node in seen.nodes
            )
            assert len(seen.nodes) == len({node.id for node in seen.nodes}) >= 1

        self.run_scenario(tmp_path, scenario)

    def test_success_with_output_complete_before_the_exit(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", "import sys; print('out'); print('err', file=sys.stderr)")
            assert await bench.wait_exits("a.1") == [Exit(ExitKind.EXIT_CODE, 0, "finished")]
            assert bench.sink.stream("a.1", 0, "stdout") == b"out\n"
            assert bench.sink.stream("a.1", 0, "stderr") == b"err\n"
            assert bench.sink.finals["a.1", 0]["exit"]["code"] == 0

        self.run_scenario(tmp_path, scenario)

    def test_exit_code_and_last_word(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", "raise SystemExit(3)")
            await bench.launch("b.1", "raise ValueError('no such thing')")
            assert await bench.wait_exits("a.1") == [Exit(ExitKind.EXIT_CODE, 3, "exit code 3")]
            assert await bench.wait_exits("b.1") == [
                Exit(ExitKind.EXIT_CODE, 1, "exit code 1: ValueError: no such thing")
            ]

        self.run_scenario(tmp_path, scenario)

    def test_signal(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
            (ended,) = await bench.wait_exits("a.1")
            assert (ended.kind, ended.code) == (ExitKind.SIGNAL, 137)
            assert ended.reason.startswith("killed by signal 9 (SIGKILL)")

        self.run_scenario(tmp_path, scenario)

    def test_gang_knows_its_ranks_and_its_meeting_point(self, tmp_path: Path) -> None:
        script = (
            "import os; print(*(os.environ[k] for k in "
            "('RANK','LOCAL_RANK','WORLD_SIZE','ROLE_RANK','MASTER_ADDR','MASTER_PORT')))"
        )

        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", script, script, script)
            assert all(ended.is_success for ended in await bench.wait_exits("a.1"))
            said = [bench.sink.stream("a.1", rank, "stdout").decode().split() for rank in range(3)]
            assert [words[0] for words in said] == ["0", "1", "2"]
            assert {words[2] for words in said} == {"3"}
            assert len({(words[4], words[5]) for words in said}) == 1

        self.run_scenario(tmp_path, scenario)

    def test_gangs_meet_at_different_points(self, tmp_path: Path) -> None:
        script = (
            "import os; print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'], flush=True); "
            + WAITING_SCRIPT
        )

        async def scenario(bench: EngineFixture) -> None:
            for name in ("a.1", "b.1", "c.1"):
                await bench.launch(name, script)
            for name in ("a.1", "b.1", "c.1"):
                await bench.wait_output(name, b"up")
            assert len({bench.sink.stream(name, 0, "stdout") for name in ("a.1", "b.1", "c.1")}) == 3

        self.run_scenario(tmp_path, scenario)

    def test_launch_is_idempotent_while_it_runs_and_after_it_ended(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            running, quick = (
                await bench.make_launch("a.1", "print('begun', flush=True); " + WAITING_SCRIPT),
                await bench.make_launch("b.1", "print('begun')"),
            )
            await asyncio.gather(bench.engine.launch(running), bench.engine.launch(running))
            await bench.engine.launch(quick)
            await bench.wait_exits("b.1")
            await bench.engine.launch(quick)
            await bench.wait_output("a.1", b"up")
            await bench.engine.launch(running)
            assert await bench.wait_exits("b.1") == [Exit(ExitKind.EXIT_CODE, 0, "finished")]
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=30))
            await bench.wait_exits("a.1")
            assert bench.sink.stream("a.1", 0, "stdout").count(b"begun") == 1
            assert bench.sink.stream("b.1", 0, "stdout").count(b"begun") == 1

        self.run_scenario(tmp_path, scenario)

    def test_stop_asks_first(self, tmp_path: Path) -> None:
        script = (
            "import signal, sys, time\ndef end(*_):\n print('saved', flush=True); sys.exit(0)\n"
            "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"
        )

        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", script)
            await bench.wait_output("a.1", b"up")
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=60))
            (ended,) = await bench.wait_exits("a.1")
            assert (ended.kind, ended.reason) == (ExitKind.STOPPED, "stopped by request")
            assert b"saved" in bench.sink.stream("a.1", 0, "stdout")

        self.run_scenario(tmp_path, scenario)

    def test_stop_kills_who_does_not_listen(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", SIGTERM_IGNORING_SCRIPT)
            await bench.wait_output("a.1", b"up")
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=0.2))
            (ended,) = await bench.wait_exits("a.1")
            assert (ended.kind, ended.code) == (ExitKind.STOPPED, 137)

        self.run_scenario(tmp_path, scenario)

    def test_preempted_at_a_safe_point_with_its_checkpoint(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", LOOP_SCRIPT)
            await bench.wait_output("a.1", b"up")
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=60), preempt=True)
            (ended,) = await bench.wait_exits("a.1")
            (saved,) = bench.sink.checkpoints
            assert (ended.kind, ended.reason) == (
                ExitKind.PREEMPTED,
                f"preempted at step {saved['step']}, checkpoint saved",
            )
            assert saved["step"] >= 3

        self.run_scenario(tmp_path, scenario)

    def test_a_preempted_gang_leaves_at_one_turn(self, tmp_path: Path) -> None:
        # Whose replicas are of different speed, and end each other's waiting when the first one leaves too
        # early.
        script = LOOP_SCRIPT + "    print('turn', turn, flush=True)\n"

        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", script, script, script)
            for rank in range(3):
                await bench.wait_output("a.1", b"up", rank=rank)
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=60), preempt=True)
            ended = await bench.wait_exits("a.1")
            assert [one.kind for one in ended] == [ExitKind.PREEMPTED] * 3
            last = {bench.sink.stream("a.1", rank, "stdout").split()[-1] for rank in range(3)}
            assert len(last) == 1
            (saved,) = bench.sink.checkpoints
            assert saved["step"] == int(last.pop()) + 1
            assert ended[0].reason == f"preempted at step {saved['step']}, checkpoint saved"

        self.run_scenario(tmp_path, scenario)

    def test_preempted_without_safe_points_is_asked_at_once_and_killed_later(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", WAITING_SCRIPT)
            await bench.launch("b.1", SIGTERM_IGNORING_SCRIPT)
            await bench.wait_output("a.1", b"up")
            await bench.wait_output("b.1", b"up")
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=3600), preempt=True)
            await bench.engine.stop(AttemptId("b.1"), grace=timedelta(seconds=0.2), preempt=True)
            assert await bench.wait_exits("a.1") == [Exit(ExitKind.PREEMPTED, 0, "preempted")]
            assert await bench.wait_exits("b.1") == [Exit(ExitKind.PREEMPTED, 137, "preempted")]

        self.run_scenario(tmp_path, scenario)

    def test_a_frozen_script_is_killed_when_the_grace_of_a_preemption_ends(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", FREEZING_SCRIPT)
            await bench.wait_output("a.1", b"up")
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=0.5), preempt=True)
            (ended,) = await bench.wait_exits("a.1")
            assert ended == Exit(ExitKind.PREEMPTED, 137, "preempted: it reached no safe point within 0.5 s")

        self.run_scenario(tmp_path, scenario)

    def test_a_stop_waits_for_no_safe_point(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", SLOW_SCRIPT)
            await bench.wait_output("a.1", b"up")
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=3600), preempt=True)
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=3600))
            (ended,) = await bench.wait_exits("a.1")
            assert (ended.kind, ended.code) == (ExitKind.STOPPED, 143)

        self.run_scenario(tmp_path, scenario)

    def test_stop_right_after_launch(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT)
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=30))
            assert {ended.kind for ended in await bench.wait_exits("a.1")} == {ExitKind.STOPPED}

        self.run_scenario(tmp_path, scenario)

    def test_stop_and_forget_of_unknown_or_ended_attempts_are_no_errors(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.engine.stop(AttemptId("nobody.1"), grace=timedelta(seconds=1))
            await bench.engine.forget(AttemptId("nobody.1"))
            await bench.launch("a.1", "pass")
            ended = await bench.wait_exits("a.1")
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=1))
            assert await bench.wait_exits("a.1") == ended

        self.run_scenario(tmp_path, scenario)

    def test_one_failing_replica_ends_the_gang(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", WAITING_SCRIPT, "raise SystemExit(7)")
            ended = await bench.wait_exits("a.1")
            assert ended[1] == Exit(ExitKind.EXIT_CODE, 7, "exit code 7")
            assert ended[0].kind in (ExitKind.PEER_FAILED, ExitKind.STOPPED)
            status = status_of(await bench.engine.observe(), "a.1")
            assert status is not None
            phase, told = gang_state(status, size=2)
            assert phase is AttemptPhase.FAILED
            assert told == Exit(ExitKind.EXIT_CODE, 7, "replica 1: exit code 7")

        self.run_scenario(tmp_path, scenario)

    def test_a_replica_that_is_not_essential_may_end_as_it_likes(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch(
                "a.1",
                WAITING_SCRIPT,
                "raise SystemExit(7)",
                "import os; os.kill(os.getpid(), 9)",
                optional=(1, 2),
            )
            await bench.wait_output("a.1", b"up")
            seen = await bench.observe_until(
                lambda o: (
                    (s := status_of(o, "a.1")) is not None
                    and sum(r.exit is not None for r in s.replicas) == 2
                )
            )
            status = status_of(await bench.engine.observe(), "a.1")
            assert status == status_of(seen, "a.1")
            assert status is not None
            assert gang_state(status, size=3, optional=(1, 2)) == (AttemptPhase.RUNNING, None)

        self.run_scenario(tmp_path, scenario)

    def test_a_gang_ends_with_its_last_essential_replica(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch(
                "a.1",
                "print('done')",
                WAITING_SCRIPT,
                "print('done too')",
                "raise SystemExit(7)",
                optional=(1, 3),
            )
            ended = await bench.wait_exits("a.1")
            assert [one.is_success for one in ended] == [True, False, True, False]
            assert ended[1].kind is ExitKind.STOPPED
            status = status_of(await bench.engine.observe(), "a.1")
            assert status is not None
            assert gang_state(status, size=4, optional=(1, 3)) == (
                AttemptPhase.SUCCEEDED,
                Exit(ExitKind.EXIT_CODE, 0, "finished"),
            )

        self.run_scenario(tmp_path, scenario)

    def test_what_is_not_essential_is_there_until_the_others_have_ended(self, tmp_path: Path) -> None:
        says = (
            "import signal, sys, time\ndef end(*_):\n print('asked', time.time(), flush=True); "
            "time.sleep({0}); print('left', time.time(), flush=True); sys.exit(0)\n"
        )
        script = says + "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"

        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", script.format(0), script.format(0.5), optional=(0,))
            for rank in range(2):
                await bench.wait_output("a.1", b"up", rank=rank)
            await bench.engine.stop(AttemptId("a.1"), grace=timedelta(seconds=60))
            assert [one.kind for one in await bench.wait_exits("a.1")] == [ExitKind.STOPPED] * 2
            times = [
                dict(
                    line.split()
                    for line in bench.sink.stream("a.1", rank, "stdout").decode().splitlines()[1:]
                )
                for rank in range(2)
            ]
            assert float(times[0]["asked"]) > float(times[1]["left"])

        self.run_scenario(tmp_path, scenario)

    def test_observe_tells_running_attempts_whole(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT)
            seen = await bench.observe_until(
                lambda o: (
                    (s := status_of(o, "a.1")) is not None
                    and all(r.phase is ReplicaPhase.RUNNING for r in s.replicas)
                )
            )
            status = status_of(seen, "a.1")
            assert status is not None
            assert sorted(replica.rank for replica in status.replicas) == [0, 1]
            assert await bench.engine.observe() == await bench.engine.observe()

        self.run_scenario(tmp_path, scenario)

    def test_forgotten_attempts_are_seen_no_more(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", "pass")
            await bench.wait_exits("a.1")
            await bench.engine.forget(AttemptId("a.1"))
            assert status_of(await bench.engine.observe(), "a.1") is None

        self.run_scenario(tmp_path, scenario)

    def test_a_gang_that_cannot_start_leaves_nothing(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            launch = await bench.make_launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT, node="no-such-node")
            with pytest.raises(LaunchFailed):
                await bench.engine.launch(launch)
            assert status_of(await bench.engine.observe(), "a.1") is None

        self.run_scenario(tmp_path, scenario)

    def test_missing_command_is_named(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", command=("no-such-program", "--fast"))
            (ended,) = await bench.wait_exits("a.1")
            assert (ended.kind, ended.code) == (ExitKind.PREPARE_FAILED, 127)
            assert "no-such-program" in ended.reason

        self.run_scenario(tmp_path, scenario)

    def test_time_limit(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", WAITING_SCRIPT, time_limit_s=0.5)
            await bench.launch("b.1", SIGTERM_IGNORING_SCRIPT, time_limit_s=1.0)
            assert await bench.wait_exits("a.1") == [
                Exit(ExitKind.TIME_LIMIT, 124, "time limit of 0.5 s reached")
            ]
            assert await bench.wait_exits("b.1") == [
                Exit(ExitKind.TIME_LIMIT, 124, "time limit of 1 s reached")
            ]

        self.run_scenario(tmp_path, scenario)

    def test_a_run_with_safe_points_saves_before_its_time_limit(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", LOOP_SCRIPT, time_limit_s=8.0)
            (ended,) = await bench.wait_exits("a.1")
            saved = bench.sink.checkpoints[-1]
            assert saved["step"] > 0
            assert ended == Exit(
                ExitKind.TIME_LIMIT, 124, f"time limit of 8 s reached, saved at step {saved['step']}"
            )
            said = bench.sink.stream("a.1", 0, "stderr").decode()
            assert (
                "hopyard: the time limit of 8 s is reached in 2 s: it saves a checkpoint at its next "
                "safe point"
            ) in said
            assert f"the time limit is reached: the checkpoint of step {saved['step']} is saved" in said
            assert b'"kind":"time-limit"' in bench.sink.stream("a.1", 0, "events")

        self.run_scenario(tmp_path, scenario)

    def test_a_script_that_comes_to_no_safe_point_ends_at_its_time_limit(self, tmp_path: Path) -> None:
        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", SLOW_SCRIPT, time_limit_s=4.0)
            reason = "time limit of 4 s reached: it reached no safe point within 1 s"
            assert await bench.wait_exits("a.1") == [Exit(ExitKind.TIME_LIMIT, 124, reason)]

        self.run_scenario(tmp_path, scenario)

    def test_memory_limit_ends_the_run_and_not_its_neighbour(self, tmp_path: Path) -> None:
        greedy = (
            "import time\nheld=[]\nfor _ in range(64):\n"
            " held.append(b'x'*(16*1024*1024)); time.sleep(0.01)\ntime.sleep(600)"
        )

        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("b.1", WAITING_SCRIPT)
            await bench.wait_output("b.1", b"up")
            await bench.launch("a.1", greedy, resources=Resources(cpu_milli=500, memory_bytes=128 * 1024**2))
            (ended,) = await bench.wait_exits("a.1")
            assert (ended.kind, ended.code) == (ExitKind.OUT_OF_MEMORY, 137)
            assert ended.reason.startswith("out of memory: used ")
            assert ended.reason.endswith(" of its 128 MiB memory")
            neighbour = status_of(await bench.engine.observe(), "b.1")
            assert neighbour is not None
            assert neighbour.replicas[0].phase is ReplicaPhase.RUNNING

        self.run_scenario(tmp_path, scenario)

    def test_output_goes_on_where_it_was_when_the_server_was_away(self, tmp_path: Path) -> None:
        script = "import time\nfor i in range(200):\n print(f'line {i}', flush=True); time.sleep(0.01)"

        async def scenario(bench: EngineFixture) -> None:
            await bench.launch("a.1", script)
            await bench.wait_output("a.1", b"line 20\n")
            await asyncio.to_thread(bench.sink.stop_listening)
            await bench.observe_until(lambda _: True)
            await asyncio.sleep(0.3)  # not a wait for anything: how long the server is away
            bench.sink.listen_again()
            bench.publish_address()
            assert [ended.is_success for ended in await bench.wait_exits("a.1")] == [True]
            assert bench.sink.stream("a.1", 0, "stdout") == b"".join(b"line %d\n" % i for i in range(200))

        self.run_scenario(tmp_path, scenario)

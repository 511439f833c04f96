"""Any process may be killed at any moment: the run ends in the right state with a reason, or continues."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase
from hopyard.domain.ids import AttemptId
from hopyard.domain.metric_records import Point, read_records
from hopyard.domain.replica import StopOrder, trusted_spec_file
from hopyard.domain.resources import Resources
from hopyard.replica import main, process_tree
from hopyard.replica.replica_dir import ReplicaDir, acquire_lock
from hopyard.testing.engine_contract import WAITING_SCRIPT, status_of
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario
from tests.replica.test_tfevents import event


@pytest.mark.parametrize("use_cgroups", [True, False])
def test_killed_replica_is_lost_with_complete_streams_and_no_process(
    run_scenario: RunScenario, use_cgroups: bool
) -> None:
    # The grandchild opens a session of its own, as daemons do.
    child = "import time; print('child', flush=True); time.sleep(600)"
    script = (
        f"import subprocess, sys, time\np = subprocess.Popen([sys.executable, '-c', {child!r}], "
        "start_new_session=True)\n"
        "print('pid', p.pid, 'up', flush=True)\ntime.sleep(600)"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script)
        await fixture.wait_output("a.1", b"up\n")
        await fixture.wait_output("a.1", b"child\n")
        state = await fixture.wait_until_running("a.1")
        grandchild = int(fixture.sink.stream("a.1", 0, "stdout").split(b"pid ")[1].split()[0])
        await asyncio.to_thread(fixture.sink.stop_listening)
        with (fixture.folder("a.1") / "streams" / "stdout").open("ab") as stream:
            stream.write(b"said while nobody listened\n")
        os.kill(state.pid, signal.SIGSTOP)  # it reads no more event files
        (fixture.folder("a.1") / "work" / "events.out.tfevents.1").write_bytes(event("late", 0.5))
        os.kill(state.pid, signal.SIGKILL)
        fixture.sink.restart_listening()
        fixture.publish_address()
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.kind is ExitKind.LOST
        assert ended.reason == f"lost: its replica died on node {(await fixture.node()).id}"
        assert fixture.sink.stream("a.1", 0, "stdout").endswith(b"said while nobody listened\n")
        names: dict[int, str] = {}
        records = list(read_records(fixture.sink.stream("a.1", 0, "tensorboard"), names))
        assert [(names[p.series], p.value) for p in records if isinstance(p, Point)] == [("late", 0.5)]
        for pid in (state.child_pid, grandchild):
            result = process_tree.read_stat(pid)
            assert result is None or result.state in "ZX"

    run_scenario(scenario, use_cgroups=use_cgroups)


def wait_for_lock(folder: Path) -> int:
    while (lock := acquire_lock(folder)) is None:
        pass
    return lock


@pytest.mark.parametrize("script", ["print('done')", "import pathlib; pathlib.Path('made').write_text('x')"])
def test_replica_of_removed_home_exits_and_recreates_nothing(run_scenario: RunScenario, script: str) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await asyncio.to_thread(fixture.sink.stop_listening)
        await fixture.launch("a.1", script)
        state = await fixture.wait_for_state("a.1", lambda state: state.exit is not None)
        fixture.folder("a.1").rename(fixture.home.root / "removed")
        await fixture.observe_until(
            lambda _: (stat := process_tree.read_stat(state.pid)) is None or stat.state in "ZX"
        )
        assert not fixture.folder("a.1").exists()

    run_scenario(scenario)


def test_adopting_replica_identifies_itself_before_killing_processes(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        os.kill((await fixture.wait_until_running("a.1")).pid, signal.SIGKILL)
        lock = await asyncio.to_thread(wait_for_lock, fixture.folder("a.1"))
        pids: list[int] = []

        def look(folder: ReplicaDir, *_: object) -> None:
            state = folder.read_state()
            pids.append(state.pid if state is not None else 0)

        monkeypatch.setattr(main, "kill_leftover_processes", look)
        monkeypatch.setattr(main.Wakeup, "listen", lambda _: None)  # signals are this process's own
        folder = ReplicaDir(fixture.folder("a.1"))
        adopter = main.Replica(folder, folder.read_spec(), adopted=folder.read_state(), is_adoption=True)
        assert adopter._finish_adoption().kind is ExitKind.LOST
        assert pids == [os.getpid()]
        # the cleanup of processes must not take this process for a replica
        folder.write_state(replace(adopter._state, pid=0))
        os.close(lock)

    run_scenario(scenario)


def test_failing_replica_loses_attempt_and_ends_script(
    run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Exit:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        monkeypatch.setattr(main.Wakeup, "listen", lambda _: None)  # signals are this process's own
        monkeypatch.setattr(main.Replica, "_prepare_and_run", fail)
        folder = ReplicaDir(fixture.folder("a.1"))
        replica = main.Replica(folder, folder.read_spec())
        replica._state = state
        ended = await asyncio.to_thread(replica._run_or_report_error, ExitStack())
        assert ended == Exit(
            ExitKind.LOST,
            1,
            f"lost: its replica failed on node {(await fixture.node()).id}: Too many open files",
        )
        result = process_tree.read_stat(state.child_pid)
        assert result is None or result.state in "ZX"

    run_scenario(scenario)


def test_replica_killed_after_exit_reports_recorded_exit(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch(
            "a.1", "import time; print('up', flush=True); time.sleep(0.2); raise SystemExit(5)"
        )
        await fixture.wait_output("a.1", b"up")
        await asyncio.to_thread(fixture.sink.stop_listening)
        state = await fixture.wait_for_state("a.1", lambda state: state.exit is not None)
        os.kill(state.pid, signal.SIGKILL)
        fixture.sink.restart_listening()
        fixture.publish_address()
        assert await fixture.wait_exits("a.1") == [Exit(ExitKind.EXIT_CODE, 5, "exit code 5")]

    run_scenario(scenario)


def test_next_engine_observes_loss_after_total_kill(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT, WAITING_SCRIPT)
        states = [await fixture.wait_until_running("a.1", rank) for rank in (0, 1)]
        await fixture.wait_output("a.1", b"up")
        await fixture.engine.close()  # type: ignore[attr-defined]
        for state in states:
            for pid in (state.pid, state.child_pid):
                os.kill(pid, signal.SIGKILL)
        fixture.engine = engine = fixture.new_engine()
        assert {ended.kind for ended in await fixture.wait_exits("a.1")} == {ExitKind.LOST}
        await engine.close()

    run_scenario(scenario)


def test_runs_continue_without_engine_and_spawner(run_scenario: RunScenario, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        "import os, time; print('up', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('end')"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script)
        await fixture.wait_output("a.1", b"up")
        await fixture.engine.close()  # type: ignore[attr-defined]
        go.touch()
        await asyncio.to_thread(fixture.sink.wait_final, "a.1")
        fixture.engine = engine = fixture.new_engine()
        assert await fixture.wait_exits("a.1") == [Exit(ExitKind.EXIT_CODE, 0, "finished")]
        await engine.close()

    run_scenario(scenario)


def test_a_killed_spawner_is_replaced(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        await fixture.wait_output("a.1", b"up")
        spawner = fixture.engine._spawner.pid  # type: ignore[attr-defined]
        os.kill(spawner, signal.SIGKILL)
        await fixture.launch("b.1", "print('b')")
        assert [ended.is_success for ended in await fixture.wait_exits("b.1")] == [True]
        status = status_of(await fixture.engine.observe(), "a.1")
        assert status is not None
        assert status.replicas[0].phase is ReplicaPhase.RUNNING

    run_scenario(scenario)


def test_interrupted_launch_is_completed_by_next_engine(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        script = "import os; print('begun', os.environ['MASTER_PORT'], flush=True); " + WAITING_SCRIPT
        launch = await fixture.make_launch("a.1", script, script)
        first = fixture.engine
        spawn = first._spawner.spawn  # type: ignore[attr-defined]

        async def only_one(folders: list[Path], *, adopt: bool = False) -> list[int | None]:
            await spawn(folders[:1], adopt=adopt)
            raise asyncio.CancelledError

        first._spawner.spawn = only_one  # type: ignore[attr-defined]
        with pytest.raises(asyncio.CancelledError):
            await first.launch(launch)
        fixture.engine = second = fixture.new_engine()
        await second.launch(launch)
        for rank in (0, 1):
            await fixture.wait_output("a.1", b"up", rank=rank)
        assert fixture.sink.stream("a.1", 0, "stdout").count(b"begun") == 1
        assert fixture.sink.stream("a.1", 0, "stdout") == fixture.sink.stream("a.1", 1, "stdout"), (
            "both meet at the same port"
        )
        await second.stop(AttemptId("a.1"), StopOrder(30.0))
        await fixture.wait_exits("a.1")
        await second.close()

    run_scenario(scenario)


def test_repeatedly_dying_replica_is_lost(run_scenario: RunScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.engines.local.engine.ADOPT_INTERVAL_S", 0.0)

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        trusted_spec_file(fixture.folder("a.1")).write_text("damaged")
        os.kill(state.pid, signal.SIGKILL)
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.kind is ExitKind.LOST

    run_scenario(scenario)


def test_adoption_ignores_what_the_script_wrote_as_its_spec(run_scenario: RunScenario) -> None:
    """The spec has the folders that are read and sent: those of the node would be, too."""

    async def scenario(fixture: LocalEngineFixture) -> None:
        secret = fixture.home.root / "foreign"
        (secret / "run").mkdir(parents=True)
        (secret / "folders.ready").touch()
        (secret / "run" / "key.pt").write_text("SECRET OF ANOTHER")
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        file = fixture.folder("a.1") / "spec.json"
        spec = json.loads(file.read_text())
        forged = {**spec, "node": {**spec["node"], "gang_folder": str(secret)}}
        file.write_text(json.dumps(forged))
        assert ReplicaDir(fixture.folder("a.1")).read_spec().node.gang_folder == str(file.parents[1])
        os.kill(state.pid, signal.SIGKILL)
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.kind is ExitKind.LOST
        assert not [blob for blob in fixture.sink.blobs.values() if b"SECRET OF ANOTHER" in blob]
        await fixture.engine.forget(AttemptId("a.1"))
        await fixture.observe_until(lambda _: not any(fixture.home.attempts.iterdir()))

    run_scenario(scenario)


def test_exit_is_written_before_the_container_is_removed(run_scenario: RunScenario) -> None:
    """A container engine that hangs delays the removal, and a stop that is overdue kills the replica."""

    class Starter:
        def end(self) -> None:
            state = folder.read_state()
            seen.append(None if state is None else state.exit)

    async def scenario(fixture: LocalEngineFixture) -> None:
        nonlocal folder
        await fixture.launch("a.1", "print('done')")
        await fixture.wait_exits("a.1")
        folder = ReplicaDir(fixture.folder("a.1"))
        replica = main.Replica(folder, folder.read_spec())
        replica._starter = Starter()  # type: ignore[assignment]
        await asyncio.to_thread(replica._report_exit, ended)
        assert seen == [ended]

    folder = ReplicaDir(Path())
    ended = Exit(ExitKind.STOPPED, 143, "stopped by me")
    seen: list[Exit | None] = []
    run_scenario(scenario)


def test_child_processes_end_with_replica_without_server(
    run_scenario: RunScenario,
) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", command=("sh", "-c", "sleep 600 & echo $!; wait"))
        state = await fixture.wait_until_running("a.1")
        stdout = fixture.folder("a.1") / "streams" / "stdout"
        deadline = asyncio.get_running_loop().time() + 60
        while not stdout.read_text().endswith("\n"):
            assert asyncio.get_running_loop().time() < deadline, "it says nothing"
            await asyncio.sleep(0.01)
        child = int(stdout.read_text())
        await fixture.engine.close()
        os.kill(state.pid, signal.SIGKILL)
        while (stat := process_tree.read_stat(child)) is not None and stat.state not in "ZX":
            assert asyncio.get_running_loop().time() < deadline, "it goes on, and nothing looks after it"
            await asyncio.sleep(0.01)

    run_scenario(scenario)


def test_externally_killed_script_is_reported(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        await fixture.wait_output("a.1", b"up")
        os.kill(state.child_pid, signal.SIGKILL)
        (ended,) = await fixture.wait_exits("a.1")
        assert (ended.kind, ended.code) == (ExitKind.SIGNAL, 137)

    run_scenario(scenario)


@pytest.mark.parametrize("use_cgroups", [True, False])
def test_background_processes_end_with_run(run_scenario: RunScenario, use_cgroups: bool) -> None:
    script = (
        "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(600)'], start_new_session=True)\nprint(p.pid)"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script)
        assert [ended.is_success for ended in await fixture.wait_exits("a.1")] == [True]
        assert process_tree.read_stat(int(fixture.sink.stream("a.1", 0, "stdout"))) is None

    run_scenario(scenario, use_cgroups=use_cgroups)


def test_program_behind_shell_gets_grace_period(run_scenario: RunScenario) -> None:
    inner = (
        "import signal, sys, time\ndef end(*_):\n time.sleep(0.2); print('saved', flush=True); "
        "sys.exit(0)\nsignal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", command=("sh", "-c", f'python -c "{inner}"; echo never'))
        await fixture.wait_output("a.1", b"up")
        await fixture.engine.stop(AttemptId("a.1"), StopOrder(60.0))
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.kind is ExitKind.STOPPED
        assert b"saved" in fixture.sink.stream("a.1", 0, "stdout")

    run_scenario(scenario)


def test_server_command_ends_run(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", "print('begun', flush=True); " + WAITING_SCRIPT)
        await fixture.wait_output("a.1", b"up")
        fixture.sink.stop_requested = True
        (fixture.folder("a.1") / "streams" / "stdout").open("ab").write(b"wake\n")
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.kind is ExitKind.STOPPED

    run_scenario(scenario)


@pytest.mark.parametrize("use_cgroups", [True, False])
def test_memory_of_children_counts(run_scenario: RunScenario, use_cgroups: bool) -> None:
    script = (
        "import subprocess, sys\nchild = 'held = b\"x\" * 120_000_000; import time; time.sleep(600)'\n"
        "subprocess.run([sys.executable, '-c', child])\nimport time; time.sleep(600)"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script, resources=Resources(100, 100 * 1024**2))
        (ended,) = await fixture.wait_exits("a.1")
        assert ended.kind is ExitKind.OUT_OF_MEMORY

    run_scenario(scenario, use_cgroups=use_cgroups)


def test_shared_memory_of_forks_is_counted_once(run_scenario: RunScenario) -> None:
    script = (
        "import os, time\nheld = bytearray(60_000_000)\nfor i in range(0, len(held), 4096): held[i] = 1\n"
        "if os.fork() == 0: time.sleep(1.0); os._exit(0)\nif os.fork() == 0: time.sleep(1.0); os._exit(0)\n"
        "os.wait(); os.wait()"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script, resources=Resources(1000, 128 * 1024**2))
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"]

    run_scenario(scenario, use_cgroups=False)


@pytest.mark.parametrize("use_cgroups", [True, False])
@pytest.mark.parametrize("moved", [False, True])
def test_adoption_in_copied_home_ends_no_original_process(
    run_scenario: RunScenario, tmp_path: Path, use_cgroups: bool, moved: bool
) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", WAITING_SCRIPT)
        state = await fixture.wait_until_running("a.1")
        home, copy = fixture.home.root, tmp_path / "copy"
        shutil.copytree(
            home, copy, ignore=lambda _, names: [name for name in names if name.endswith(".sock")]
        )
        if moved:  # the copy takes the place of the original
            home.rename(tmp_path / "original")
            copy.rename(home)
            copy = home
        place = copy / "attempts" / "a.1" / "0"
        adopter = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hopyard.replica", str(place), "--adopt"
        )
        try:
            await fixture.observe_until(
                lambda _: (said := ReplicaDir(place).read_state()) is not None and said.exit is not None
            )
            ends = (process_tree.read_stat(pid) for pid in (state.pid, state.child_pid))
            assert all(stat is not None and stat.state not in "ZX" for stat in ends)
        finally:
            adopter.kill()
            await adopter.wait()
            if moved:
                shutil.rmtree(home)
                (tmp_path / "original").rename(home)
        assert moved or ("a.1", 0) not in fixture.sink.finals

    run_scenario(scenario, use_cgroups=use_cgroups)

"""Processes of a preempted gang exit at the same step, however they synchronise."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.attempt import ExitKind
from hopyard.domain.replica import STOP_FILE, StopOrder
from hopyard.sdk import safe_points
from hopyard.sdk.command_file import CommandFile
from hopyard.sdk.safe_points import (
    SAFE_POINT_EXIT_CODE,
    SAFE_POINT_EXIT_FILE,
    SafePointAction,
    SafePoints,
)
from tests.sdk.scripts import Replica
from tests.small_disk import small_disk

PATIENCE_S = 60.0


def write_command(folder: Path, what: StopOrder | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / "scratch"
    scratch.write_bytes(msgspec.json.encode(what or StopOrder.for_preemption(60)))
    scratch.replace(folder / STOP_FILE)


def test_sdk_and_replica_use_same_file_names() -> None:
    assert safe_points._STOP_FILE == STOP_FILE


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(2, 4),
    collective_every=st.sampled_from([1, 2, 7, 1000]),
    asked_after=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    pauses=st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.01]), min_size=4, max_size=4),
)
def test_all_ranks_exit_at_same_step(
    size: int, collective_every: int, asked_after: list[int], pauses: list[float]
) -> None:
    """Each replica receives the request at a different step. At every n-th step they synchronise, as in a
    collective operation."""
    with TemporaryDirectory() as root:
        gang, meeting, left = Path(root), threading.Barrier(size), {}
        members = [SafePoints(str(gang / str(rank)), str(gang), rank, size) for rank in range(size)]
        paused = threading.Event()

        def train(rank: int) -> None:
            for turn in range(1, 100_000):
                if turn % collective_every == 0:
                    meeting.wait(PATIENCE_S)
                if turn > asked_after[rank]:
                    write_command(gang / str(rank))
                paused.wait(pauses[rank])  # never set: how long a turn takes
                if members[rank].reach() is SafePointAction.STOP:
                    left[rank] = turn
                    members[rank].exit_preempted(turn)
                    return

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(left) == list(range(size))
        assert len(set(left.values())) == 1
        assert json.loads((gang / "0" / SAFE_POINT_EXIT_FILE).read_text()) == {"rank": 0, "step": left[0]}


SCRIPT = """
import hopyard as hop
bound = hop.bind(seen=[])
for turn in hop.loop(range(5), every=2):
    bound.seen.append(turn)
    {body}
print("end")
"""


@pytest.mark.parametrize("kind", [ExitKind.STOPPED, ExitKind.PEER_FAILED])
def test_command_other_than_preemption_is_handled_by_signal(replica: Replica, kind: ExitKind) -> None:
    write_command(replica.folder, StopOrder(60, kind))
    assert replica.run(SCRIPT.format(body="pass")).stdout == "end\n"


def test_preempted_script_saves_after_step_and_exits_with_own_code(replica: Replica) -> None:
    write_command(replica.folder)
    done = replica.run(SCRIPT.format(body="pass"), ok=False)
    assert (done.returncode, done.stdout, replica.checkpoints) == (SAFE_POINT_EXIT_CODE, "", [1])
    assert "preempted: the checkpoint of step 1 is saved" in done.stderr
    assert json.loads((replica.folder / SAFE_POINT_EXIT_FILE).read_text()) == {"rank": 0, "step": 1}


def test_checkpoint_of_current_step_is_not_saved_twice(replica: Replica) -> None:
    body = f"import shutil; shutil.copy('asked', {STOP_FILE!r}) if turn == 1 else None"
    (replica.folder / "asked").write_bytes(msgspec.json.encode(StopOrder.for_preemption(60)))
    done = replica.run(SCRIPT.format(body=body + "; import time; time.sleep(0.03)"), ok=False)
    assert (done.returncode, replica.checkpoints) == (SAFE_POINT_EXIT_CODE, [2])


def test_preemption_runs_finally_and_passes_except_exception(replica: Replica) -> None:
    write_command(replica.folder)
    code = (
        "import hopyard as hop\ntry:\n  for turn in hop.loop(range(5)):\n    try: pass\n"
        "    except Exception: pass\nfinally: print('tidy')\n"
    )
    done = replica.run(code, ok=False)
    assert (done.returncode, done.stdout) == (SAFE_POINT_EXIT_CODE, "tidy\n")
    assert "nothing could be saved" in done.stderr


def test_restarted_process_of_preempted_gang_does_nothing(replica: Replica) -> None:
    write_command(replica.folder)
    replica.run(SCRIPT.format(body="pass"), ok=False)
    second_run = replica.run(SCRIPT.format(body="print('works')"), ok=False)
    assert (second_run.returncode, second_run.stdout, replica.checkpoints) == (SAFE_POINT_EXIT_CODE, "", [1])
    assert json.loads((replica.folder / SAFE_POINT_EXIT_FILE).read_text())["step"] == 1


FILLS = """
import errno, os
with open("ballast", "wb", buffering=0) as file:
    for size in (65536, 1):
        try:
            while file.write(bytes(size)): pass
        except OSError as full:
            assert full.errno == errno.ENOSPC
"""


@pytest.mark.parametrize("freed", [False, True])
def test_checkpoint_waits_for_disk_space_during_grace(replica: Replica, freed: bool) -> None:
    with small_disk(replica.folder, 1024**2):
        (replica.folder / "streams").mkdir()
        write_command(replica.folder, StopOrder.for_preemption(60 if freed else 2))
        process = replica.start(SCRIPT.format(body=f"exec({FILLS!r}) if turn == 0 else None"))
        assert process.stderr is not None
        refused = process.stderr.readline()
        assert "no checkpoint of step 1: No space left on device" in refused
        if freed:
            (replica.folder / "ballast").unlink()
        assert process.wait(PATIENCE_S) == SAFE_POINT_EXIT_CODE
        left = json.loads((replica.folder / SAFE_POINT_EXIT_FILE).read_text())
        process.stderr.close()
        assert replica.checkpoints == ([1] if freed else [])
        assert left == (
            {"rank": 0, "step": 1} if freed else {"rank": 0, "step": None, "why": "the disk was full"}
        )


def _pending_command(gang: Path) -> None:
    command = {"number": 1, "kind": "set", "arguments": {"lr": 0.1}, "user": "ann"}
    CommandFile(str(gang)).append([command])


def test_restarted_process_meets_its_peers_after_the_repeated_iterations(tmp_path: Path) -> None:
    peer = SafePoints(str(tmp_path / "0"), str(tmp_path), 0, 2)
    for _ in range(3):
        assert peer.reach() is None
    # the peer waits for the other process in its fourth iteration, as in a collective operation
    restarted = SafePoints(str(tmp_path / "1"), str(tmp_path), 1, 2, 0, restarted_after=1)
    _pending_command(tmp_path)
    assert [restarted.reach(), restarted.reach()] == [None, None]
    with ThreadPoolExecutor() as pool:
        actions = [pool.submit(each.reach) for each in (peer, restarted)]
        assert [each.result(PATIENCE_S) for each in actions] == [SafePointAction.COMMANDS] * 2


def test_restarted_process_and_its_peers_wait_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_points, "_PEER_TIMEOUT_S", 0.05)
    peer = SafePoints(str(tmp_path / "0"), str(tmp_path), 0, 2)
    peer.reach()
    restarted = SafePoints(str(tmp_path / "1"), str(tmp_path), 1, 2, 0, restarted_after=7)
    _pending_command(tmp_path)
    assert restarted.reach() is None  # the peer may wait for it inside an iteration
    assert peer.reach() is SafePointAction.COMMANDS  # the other process may never reach a safe point
    assert restarted.reach() is SafePointAction.COMMANDS

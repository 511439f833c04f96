"""The parent of a driver restarts it after a kill; logs and checkpoints of a driver."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.domain.study import Goal
from hopyard.errors import SpecError, WorkersLost
from hopyard.sdk.checkpoints import read_checkpoint
from hopyard.sdk.streams import EventStream
from hopyard.studies.checkpoint_files import find_checkpoint, write_checkpoint
from hopyard.studies.curves import Curves, displayed_points, read_points
from hopyard.studies.peer_exits import PeerExits
from hopyard.studies.process_context import load_process_context

PARENT = """
import sys
from hopyard.study_app.__main__ import supervise
sys.exit(supervise([sys.executable, "-c", sys.argv[1], *sys.argv[2:]]))
"""
# Counts its lives in a file.
LIVES = (
    "import os, signal, sys, time; f = open(sys.argv[1], 'a'); f.write('x'); f.flush(); lives = "
    "os.path.getsize(sys.argv[1]); "
)


def start_supervised(script: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PARENT, LIVES + script, *words], stderr=subprocess.PIPE)


def wait_for_exit(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr.decode()


def test_killed_driver_is_restarted(tmp_path: Path) -> None:
    code, stderr = wait_for_exit(
        start_supervised("lives < 3 and os.kill(os.getpid(), 9); sys.exit(7)", str(tmp_path / "lives"))
    )
    assert code == 7
    assert stderr.count("was killed by signal 9; it resumes from its journal") == 2


def test_repeatedly_killed_driver_fails_study(tmp_path: Path) -> None:
    code, stderr = wait_for_exit(start_supervised("os.kill(os.getpid(), 11)", str(tmp_path / "lives")))
    assert code == 128 + signal.SIGSEGV
    assert (
        stderr.splitlines()[-1]
        == "error: the study's driver was killed 10 times within 60 s, by signal 11 the last time"
    )


def test_shared_memory_of_killed_driver_is_freed(tmp_path: Path) -> None:
    """By Python's own tracker, which lives a little longer."""
    makes = (
        "from multiprocessing import shared_memory; lives < 2 and "
        "shared_memory.SharedMemory(sys.argv[2], True, 64) and os.kill(os.getpid(), 9)"
    )
    name = f"hopyard-test-{os.getpid()}"
    code, stderr = wait_for_exit(start_supervised(makes, str(tmp_path / "lives"), name))
    block = Path("/dev/shm") / name
    try:
        assert (code, stderr.count("killed by signal 9")) == (0, 1)
        assert not block.exists()
    finally:
        block.unlink(missing_ok=True)


STOPPED = """
import os, signal, subprocess, sys
from hopyard.mop_runtime import watchdog
said = []
felt = watchdog.Watchdog(said.append, hang_timeout_s=2)
gives = "from hopyard.mop_runtime import watchdog; watchdog.start_heartbeat(); import time; time.sleep(600)"
given = {**os.environ, watchdog.HEARTBEAT_PIPE_VARIABLE: str(felt.write_fd)}
child = subprocess.Popen([sys.executable, "-c", gives], env=given, pass_fds=(felt.write_fd,))
felt.watch(child)
while not felt._heartbeat_seen:
    signal.pause()
child.send_signal(signal.SIGSTOP)
os.waitid(os.P_PID, child.pid, os.WSTOPPED)
for _ in range(30):
    felt._on_timer(signal.SIGALRM, None)
print(said, child.poll())
child.kill()
child.wait()
"""


def test_worker_stopped_by_debugger_is_not_hanging() -> None:
    result = subprocess.run(
        [sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "[] None\n"


def test_requested_stop_is_forwarded_and_final(tmp_path: Path) -> None:
    waits = (
        "print('up', file=sys.stderr, flush=True); signal.signal(15, lambda *_: sys.exit(143)); "
        "time.sleep(600)"
    )
    process = start_supervised(waits, str(tmp_path / "lives"))
    assert process.stderr is not None
    assert process.stderr.readline() == b"up\n"
    (child,) = psutil.Process(process.pid).children()
    process.terminate()
    assert wait_for_exit(process)[0] == 143
    assert not child.is_running()


EXITS = """
import signal, sys
from hopyard.study_app.__main__ import supervise
code = supervise([sys.executable, "-c", "pass"], role="worker")
print(code, signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGTERM).name)
"""


def test_no_signal_ends_supervisor_while_it_exits() -> None:
    """Python's handlers are gone by then: a timer or a repeated stop would decide the exit code."""
    result = subprocess.run(
        [sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "0 (0.0, 0.0) SIG_IGN\n"


def test_driver_ends_with_its_parent(tmp_path: Path) -> None:
    process = start_supervised(
        "print('up', file=sys.stderr, flush=True); time.sleep(600)", str(tmp_path / "lives")
    )
    assert process.stderr is not None
    process.stderr.readline()
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running()


FULL = """
import resource, signal, sys, threading
from pathlib import Path
from hopyard.errors import WorkersLost
from hopyard.study_app import driver_main
from hopyard.studies.journal import Journal

stopping, how = threading.Event(), sys.argv[2]
study = object.__new__(driver_main._StudyProcess)  # all of it that takes part
study._earlier_records = []
def wait_for_space(error):
    if how == "stopped":
        stopping.set()
    elif how == "room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
        return True
    return False
study._journal = Journal(Path(sys.argv[1]), wait_for_space=wait_for_space)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
sys.exit(driver_main._exit_code_of_error(WorkersLost("all 2 workers exited"), study, stopping))
"""


@pytest.mark.parametrize(
    ("how", "code", "stderr"),
    [
        ("room", 75, ["all 2 workers exited; the study continues with new workers"]),
        ("stopped", 143, []),
        (
            "no room",
            1,
            [
                "error: the study's journal cannot be written: No space left on device",
                "hint: free space on its disk: run `hop rm` to delete old runs",
            ],
        ),
    ],
)
def test_study_that_lost_workers_on_full_disk_exits_without_traceback(
    tmp_path: Path, how: str, code: int, stderr: list[str]
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "journal"), how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr.splitlines()) == (code, stderr)


def test_process_outside_study_is_reported(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOPYARD_")} | {
        "HOPYARD_HOME": str(tmp_path)
    }
    result = subprocess.run(
        [sys.executable, "-m", "hopyard.studies"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "error: this process is not part of a study",
        "hint: start one with `hop search search.yaml`",
    ]
    with pytest.raises(SpecError, match="not part of a study"):
        load_process_context({})
    broken = tmp_path / "study.json"
    broken.write_text("{}")
    with pytest.raises(SpecError, match="cannot be read"):
        load_process_context({"HOPYARD_STUDY": str(broken)})


# -- curves --------------------------------------------------------------------------------------------------


def report_record(trial: str, step: int, value: float | None, **more: float) -> dict[str, object]:
    report = {
        "trial": trial,
        "step": step,
        "value": value,
        "outcome": "running" if value is not None else "failed",
    }
    return {
        "kind": "told",
        "report": report,
        "verdict": "continue",
        "metrics": {} if value is None else {"acc": value, **more},
    }


RECORDS = [
    report_record("0", 1, 0.5, loss=2.0),
    report_record("1", 1, 0.4),
    report_record("0", 2, 0.3),
    report_record("1", 1, None),
    report_record("1", 2, 0.9),
]


def logged_points(
    records: list[dict[str, object]],
    *,
    all_metrics: bool = False,
    known_points: set[tuple[str, int]] | None = None,
) -> list[tuple[str, int, float]]:
    points: list[tuple[str, int, float]] = []

    def log(values: Mapping[str, float], /, *, step: int) -> None:
        points.extend((name, step, value) for name, value in values.items())

    Curves("acc", Goal.MAX, log, all_metrics=all_metrics, known_points=known_points or ()).replay(records)
    return points


def test_curves_of_each_trial_and_of_best_are_logged() -> None:
    assert logged_points(RECORDS) == [
        ("acc/0", 1, 0.5),
        ("best/acc", 1, 0.5),
        ("acc/1", 1, 0.4),
        ("best/acc", 2, 0.5),
        ("acc/0", 2, 0.3),
        ("best/acc", 3, 0.5),
        ("acc/1", 2, 0.9),
        ("best/acc", 4, 0.9),
    ]
    assert ("loss/0", 1, 2.0) in logged_points(RECORDS, all_metrics=True)
    assert logged_points([report_record("0", 1, math.nan)]) == []


def test_missing_curve_points_are_logged_once(tmp_path: Path) -> None:
    stream = tmp_path / "metrics"
    stream.write_bytes(pack_definition("acc/0") + pack_point(POINT, series_id("acc/0"), 1, 1.0, 0.5))
    known_points = read_points(stream) | displayed_points({"best/acc": {"steps": [1, 2]}})
    assert known_points == {("acc/0", 1), ("best/acc", 1), ("best/acc", 2)}
    assert read_points(tmp_path / "none") == set()
    assert logged_points(RECORDS, known_points=known_points) == [
        point for point in logged_points(RECORDS) if point[:2] not in known_points
    ]


# -- checkpoints ---------------------------------------------------------------------------------------------


def test_study_checkpoint_is_ordinary_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "journal").write_bytes(b"x" * 17)
    events, state = EventStream(str(tmp_path / "streams" / "events")), tmp_path / "state"
    state.write_bytes(b"weights")
    folder = write_checkpoint(tmp_path, events, 3, {"abc-1": state}, {"acc": 0.5})
    state.unlink()
    assert read_checkpoint(str(folder)).step == 3
    assert (folder / "abc-1").read_bytes() == b"weights"
    stderr = json.loads((tmp_path / "streams" / "events").read_text())
    assert (stderr["kind"], stderr["step"], stderr["folder"], stderr["offsets"]["journal"]) == (
        "checkpoint",
        3,
        "checkpoints/3",
        17,
    )
    with pytest.raises(OSError, match="No such file"):
        write_checkpoint(tmp_path, events, 4, {"gone": state}, {})
    for name in ("hopyard.json", "../up", ".hidden"):
        with pytest.raises(SpecError, match="cannot name a file"):
            write_checkpoint(tmp_path, events, 5, {name: folder / "abc-1"}, {})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]


def test_newest_checkpoint_is_found(tmp_path: Path) -> None:
    (tmp_path / "streams").mkdir()
    events, state = EventStream(str(tmp_path / "streams" / "events")), tmp_path / "state"
    state.write_bytes(b"weights")
    assert find_checkpoint(tmp_path, None, None) is None
    first = write_checkpoint(tmp_path, events, 9, {"a": state}, {})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    saved = find_checkpoint(elsewhere, first, 9)
    assert saved is not None
    assert (saved.step, dict(saved.files)) == (9, {"a": first / "a"})
    newer = write_checkpoint(tmp_path, events, 10, {"b": state}, {})
    (tmp_path / "checkpoints" / "11").mkdir()  # removed by the replica, half-way
    result = find_checkpoint(tmp_path, first, 9)
    assert result is not None
    assert (result.step, dict(result.files)) == (10, {"b": newer / "b"})


# -- peers ---------------------------------------------------------------------------------------------------


def test_worker_loss_reason_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.studies.peer_exits._POLL_INTERVAL_S", 0.0)
    ends = {
        0: {"kind": "exit-code", "code": 1, "reason": "the driver's own"},
        1: {
            "kind": "out-of-memory",
            "code": 137,
            "reason": "out of memory: used 1.2 GiB of its 1.0 GiB memory",
        },
        2: {"kind": "stopped", "code": 143, "reason": "ended with its gang"},
        3: None,
    }
    for rank, ended in ends.items():
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "status.json").write_text(json.dumps({"phase": "running", "exit": ended}))
        (tmp_path / str(rank) / "spec.json").write_text(
            json.dumps({"launch": {"role": "worker", "role_rank": rank - 1}})
        )
    (tmp_path / "4").mkdir()  # nothing is known of it
    (tmp_path / "turns").mkdir()
    peers = PeerExits(tmp_path, 0)
    assert peers.poll_failed() == [("worker-0", "out of memory: used 1.2 GiB of its 1.0 GiB memory")]
    assert peers.poll_failed() == []
    peers.check_workers_remain(2)
    with pytest.raises(WorkersLost, match="all 1 workers exited: out of memory: used") as error:
        peers.check_workers_remain(1)
    assert "resources: {memory: 2G}" in error.value.hints[0]


def test_driver_of_trial_runs_needs_only_standard_library() -> None:
    script = (
        "import sys\nbefore = set(sys.modules)\n"
        "import hopyard.study_app.driver_main, hopyard.studies.trial_runs.trainer, "
        "hopyard.study_app.__main__\nprint(sorted({name.partition('.')[0] for name in set(sys.modules) - "
        "before} - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['hopyard']"

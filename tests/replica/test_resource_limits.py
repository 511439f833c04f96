"""Control groups that a process cannot join: a process with real-time priority cannot join a CPU group."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from hopyard.domain.attempt import ExitKind
from hopyard.domain.replica import NodeContext
from hopyard.domain.resources import Resources
from hopyard.engines.local.cgroups import find_cgroups
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.resource_limits import ReplicaCgroups
from hopyard.replica.user_process import ProcessSpec, start_process


def test_unjoinable_cgroup_is_dropped_and_others_retained(tmp_path: Path) -> None:
    """A failure would end the run: membership of one group would depend on the other."""
    joined, closed = tmp_path / "memory", tmp_path / "cpu"
    joined.mkdir()
    closed.mkdir()
    (joined / "cgroup.procs").touch()  # a file in its place; `closed` has no such file
    groups = ReplicaCgroups({"cpu": closed, "memory": joined})
    command = ProcessSpec(
        ["sh", "-c", "exit 7"],
        dict(os.environ),
        tmp_path,
        tmp_path / "out",
        tmp_path / "err",
        groups=[closed, joined],
    )

    started = start_process(command)
    groups.drop(started.failed_cgroups)

    assert started.failed_cgroups == {closed}
    assert groups.folders == {"memory": joined}
    assert not closed.exists()
    assert (joined / "cgroup.procs").read_text() == "0"
    assert os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1]) == 7


def test_start_of_a_process_is_the_time_of_its_program(tmp_path: Path) -> None:
    command = ProcessSpec(["date", "+%s.%N"], dict(os.environ), tmp_path, tmp_path / "out", tmp_path / "err")
    before = time.time()
    started = start_process(command)
    os.waitpid(started.pid, 0)
    assert before <= started.began_at <= float((tmp_path / "out").read_text())


_FORKS = """
import os, sys
made = 0
for _ in range(60):
    try:
        child = os.fork()
    except BlockingIOError:
        break
    if not child:
        import time
        time.sleep(60)
    made += 1
print(made, flush=True)
"""


def test_process_count_is_limited(tmp_path: Path) -> None:
    pids_group = find_cgroups().get("pids")
    if pids_group is None:
        pytest.skip("no cgroups for processes can be made here")
    folder = pids_group / f"test-{os.getpid()}"
    groups = ReplicaCgroups.create(
        NodeContext(
            "n", str(tmp_path), str(tmp_path / "server.json"), 0, cgroups={"pids": str(folder)}, processes=20
        ),
        Resources(),
    )
    command = ProcessSpec(
        [sys.executable, "-c", _FORKS],
        dict(os.environ),
        tmp_path,
        tmp_path / "out",
        tmp_path / "err",
        groups=[folder],
    )
    try:
        started = start_process(command)
        groups.drop(started.failed_cgroups)
        os.waitpid(started.pid, 0)
        assert 10 < int((tmp_path / "out").read_text()) < 20
    finally:
        groups.remove()
    assert not folder.exists()


def test_program_of_the_code_is_looked_up_where_this_process_sees_it(tmp_path: Path) -> None:
    outer, seen = tmp_path / "outer", tmp_path / "seen"
    outer.mkdir()
    program = outer / "train.sh"
    program.write_text('#!/bin/sh\necho "$0"\n')
    program.chmod(0o755)
    with pytest.raises(PrepareFailed, match=r"other\.sh"):
        start_process(_program("./other.sh", seen, outer))
    with pytest.raises(PrepareFailed, match="cannot be entered"):
        start_process(_program("./train.sh", seen, outer))
    seen.symlink_to(outer)
    os.waitpid(start_process(_program("./train.sh", seen, outer)).pid, 0)
    assert (tmp_path / "out").read_text() == f"{seen}/train.sh\n"


def _program(word: str, cwd: Path, outer_cwd: Path) -> ProcessSpec:
    folder = outer_cwd.parent
    return ProcessSpec([word], dict(os.environ), cwd, folder / "out", folder / "err", outer_cwd=outer_cwd)


def test_missing_working_folder_is_node_fault_and_missing_interpreter_is_script_fault(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o755)
    for word, cwd, kind, expected in (
        (str(program), tmp_path / "gone", ExitKind.NODE_FAULT, "gone"),
        (str(program), tmp_path, ExitKind.PREPARE_FAILED, "interpreter"),
    ):
        with pytest.raises(PrepareFailed) as error:
            start_process(ProcessSpec([word], dict(os.environ), cwd, tmp_path / "out", tmp_path / "err"))
        assert error.value.exit.kind is kind and expected in error.value.exit.reason

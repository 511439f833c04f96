"""Control groups that the kernel does not let a process into: whoever runs with real-time priority may join no group of processors."""

from __future__ import annotations

import os
from pathlib import Path

from hopyard.replica.limits import Groups
from hopyard.replica.process import Command, start


def test_a_group_that_cannot_be_joined_is_given_up_and_the_others_stay(tmp_path: Path) -> None:
    """It was the end of the run: who was in one group was ended because of the other."""
    joined, closed = tmp_path / "memory", tmp_path / "cpu"
    joined.mkdir()
    closed.mkdir()
    (joined / "cgroup.procs").touch()  # a file in its place; in `closed` there is none to write to
    groups = Groups({"cpu": closed, "memory": joined})
    command = Command(["sh", "-c", "exit 7"], dict(os.environ), tmp_path, tmp_path / "out", tmp_path / "err", groups=[closed, joined])

    started = start(command)
    groups.give_up(started.refused)

    assert started.refused == {closed}
    assert groups.folders == {"memory": joined}
    assert not closed.exists()
    assert (joined / "cgroup.procs").read_text() == "0"
    assert os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1]) == 7

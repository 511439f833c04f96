"""The control groups of a container."""

from __future__ import annotations

import subprocess

from hopyard.replica.container.oom_watch import container_cgroups


def test_groups_that_others_share_are_no_groups_of_the_container() -> None:
    """All processes of a group of a container are killed with it, which would be those of these tests."""
    with subprocess.Popen(["sleep", "60"]) as process:
        assert container_cgroups(process.pid) == {}
        process.kill()

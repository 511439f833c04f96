"""`hop service` with a real systemd: one of a user's own, as it runs beside the machine's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .world import World, until

SYSTEMD = Path("/usr/lib/systemd/systemd")
# systemd runs as a user's only on a machine that it has booted. It sees that by a folder, given to it alone
# here.
BOOTED = (
    f"mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && exec {SYSTEMD} --user "
    "--log-target=null"
)
pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not SYSTEMD.exists() or shutil.which("unshare") is None,
    reason="needs root and systemd",
)


@pytest.fixture
def managed(world: World) -> Iterator[World]:
    """A world whose user has a systemd."""
    with tempfile.TemporaryDirectory(prefix="hopyard-xdg-") as folder:
        Path("/run/systemd").mkdir(exist_ok=True)
        own = {
            "XDG_RUNTIME_DIR": folder,
            "XDG_CONFIG_HOME": str(world.root / "config"),
            "HOME": str(world.root),
        }
        world.environment |= own
        systemd = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", BOOTED],
            env=world.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(
                lambda: (
                    systemctl(world, "show", "--property=Version").returncode == 0
                    or systemd.poll() is not None
                ),
                "systemd",
            )
            if systemd.poll() is not None:
                pytest.skip("systemd does not run in this container")
            yield world
        finally:
            systemd.terminate()
            systemd.wait(timeout=60)


def systemctl(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemctl", "--user", *words], env=world.environment, capture_output=True, text=True, check=False
    )


def main_pid(world: World, unit: str) -> int:
    return int(systemctl(world, "show", "--property=MainPID", "--value", unit).stdout or 0)


def test_service_takes_over_the_server_restarts_it_and_leaves_runs_alone(managed: World) -> None:
    world = managed
    world.write(
        "waits.py",
        "import sys, time, os\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint('done')\n",
    )
    gate = world.root / "gate"
    run = world.reaches(world.detach("waits.py", "--", str(gate)), "running")
    before, script = world.server_pid(), world.state(run)["child_pid"]
    installed = world.ok("service", "install")
    unit = world.ok("service", "status", "--json").json
    assert (unit["installed"], unit["state"], unit["enabled"], unit["home"]) == (
        True,
        "active",
        True,
        str(world.home.root),
    )
    assert f"wrote and started {unit['file']}" in installed.talk
    served = main_pid(world, unit["unit"])
    assert served == world.server_pid() != before
    os.kill(served, signal.SIGKILL)  # a crash
    until(lambda: main_pid(world, unit["unit"]) not in (0, served), "another server")
    assert systemctl(world, "stop", unit["unit"]).returncode == 0
    assert psutil.pid_exists(script), "the run goes on without the unit"
    assert systemctl(world, "start", unit["unit"]).returncode == 0
    until(lambda: world.server_pid() == main_pid(world, unit["unit"]) != 0, "the server of the unit")
    gate.touch()
    assert world.reaches(run["name"], "succeeded")["attempt"]["number"] == 1
    world.ok("service", "uninstall")
    assert not Path(unit["file"]).exists() and world.ok("ps", "-a", "--json").json[0]["phase"] != "running"
    assert world.hop("service", "status").code == 1


def test_service_refuses_to_replace_a_unit_that_is_not_its_own(managed: World) -> None:
    world = managed
    file = Path(world.hop("service", "status", "--json").json["file"])
    file.parent.mkdir(parents=True)
    file.write_text("[Service]\nExecStart=/bin/true\n")
    for words in (("install",), ("uninstall",)):
        refused = world.hop("service", *words)
        assert refused.code == 1 and "was not written by `hop service`" in refused.talk
    assert file.read_text() == "[Service]\nExecStart=/bin/true\n"


def test_unit_of_a_user_for_the_home_of_another_one_is_refused(world: World) -> None:
    refused = world.hop("service", "install", "--system", "--run-as", "nobody", "--print")
    assert (
        refused.code == 2
        and f"{world.home.root} belongs to root" in refused.talk
        and "--run-as root" in refused.talk
    ), refused
    world.ok("service", "install", "--system", "--run-as", "root", "--print")

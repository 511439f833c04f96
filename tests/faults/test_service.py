"""`hop service` with a real systemd: a separate user instance, as next to the instance of the machine."""

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

from .server_home import ServerHome, wait_until

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
def systemd_home(server_home: ServerHome) -> Iterator[ServerHome]:
    """A home whose user has a systemd instance."""
    with tempfile.TemporaryDirectory(prefix="hopyard-xdg-") as folder:
        Path("/run/systemd").mkdir(exist_ok=True)
        own = {
            "XDG_RUNTIME_DIR": folder,
            "XDG_CONFIG_HOME": str(server_home.root / "config"),
            "HOME": str(server_home.root),
        }
        server_home.environment |= own
        systemd = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", BOOTED],
            env=server_home.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(
                lambda: (
                    systemctl(server_home, "show", "--property=Version").returncode == 0
                    or systemd.poll() is not None
                ),
                "systemd",
            )
            if systemd.poll() is not None:
                pytest.skip("systemd does not run in this container")
            yield server_home
        finally:
            systemd.terminate()
            systemd.wait(timeout=60)


def systemctl(server_home: ServerHome, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemctl", "--user", *words],
        env=server_home.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def main_pid(server_home: ServerHome, unit: str) -> int:
    return int(systemctl(server_home, "show", "--property=MainPID", "--value", unit).stdout or 0)


@pytest.mark.slow
def test_service_adopts_running_server_restarts_it_and_keeps_runs(systemd_home: ServerHome) -> None:
    server_home = systemd_home
    server_home.write(
        "waits.py",
        "import sys, time, os\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint('done')\n",
    )
    gate = server_home.root / "gate"
    run = server_home.wait_for_phase(server_home.run_detached("waits.py", "--", str(gate)), "running")
    before, script = server_home.server_pid(), server_home.replica_status(run)["child_pid"]
    installed = server_home.ok("service", "install")
    unit = server_home.ok("service", "status", "--json").json
    assert (unit["installed"], unit["state"], unit["enabled"], unit["home"]) == (
        True,
        "active",
        True,
        str(server_home.home.root),
    )
    assert f"wrote and started {unit['file']}" in installed.stderr
    served = main_pid(server_home, unit["unit"])
    assert served == server_home.server_pid() != before
    os.kill(served, signal.SIGKILL)  # a crash
    wait_until(lambda: main_pid(server_home, unit["unit"]) not in (0, served), "another server")
    assert systemctl(server_home, "stop", unit["unit"]).returncode == 0
    assert psutil.pid_exists(script), "the run goes on without the unit"
    assert systemctl(server_home, "start", unit["unit"]).returncode == 0
    wait_until(
        lambda: server_home.server_pid() == main_pid(server_home, unit["unit"]) != 0, "the server of the unit"
    )
    gate.touch()
    assert server_home.wait_for_phase(run["name"], "succeeded")["attempt"]["number"] == 1
    server_home.ok("service", "uninstall")
    assert (
        not Path(unit["file"]).exists() and server_home.ok("ps", "-a", "--json").json[0]["phase"] != "running"
    )
    assert server_home.hop("service", "status").code == 1


def test_service_refuses_to_replace_foreign_unit(systemd_home: ServerHome) -> None:
    server_home = systemd_home
    file = Path(server_home.hop("service", "status", "--json").json["file"])
    file.parent.mkdir(parents=True)
    file.write_text("[Service]\nExecStart=/bin/true\n")
    for words in (("install",), ("uninstall",)):
        result = server_home.hop("service", *words)
        assert result.code == 1 and "was not written by `hop service`" in result.stderr
    assert file.read_text() == "[Service]\nExecStart=/bin/true\n"


def test_user_unit_for_home_of_another_user_is_refused(server_home: ServerHome) -> None:
    result = server_home.hop("service", "install", "--system", "--run-as", "nobody", "--print")
    assert (
        result.code == 2
        and f"{server_home.home.root} belongs to root" in result.stderr
        and "--run-as root" in result.stderr
    ), result
    server_home.ok("service", "install", "--system", "--run-as", "root", "--print")

"""For all tests: no real home folder is touched, no process outlives the session, and no test is judged by
the clock."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hopyard.sdk import params
from tests import exploration

# A test that needs a home sets one below its tmp_path. A test that forgets to do so fails at once instead of
# using the developer's home.
os.environ["HOPYARD_HOME"] = "/proc/set-HOPYARD_HOME-below-tmp_path"
exploration.load_profile()
# A shell starts its background processes with Ctrl-C ignored, and every process that a test starts would
# inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Returns the workers for `-n auto`: the tests wait for other processes a third of their time."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if exploration.ROUND:
        items[:], others = exploration.split_property_tests(items)
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ends processes that tests did not end, and reports them as an error.
    The processes are recognised by the temporary folder in their arguments or environment."""
    base = tmp_path_factory.getbasetemp()
    yield
    _, alive = psutil.wait_procs(_using(base), timeout=15)
    left = [f"{process.pid} {' '.join(_arguments(process))}" for process in alive if process.is_running()]
    for process in alive:
        process.kill()
    assert not left, "tests must end every process that they start"


@pytest.fixture(autouse=True)
def _no_session_is_left_behind() -> Iterator[None]:
    """A session of the script API that a test begins in this process would record what later tests do."""
    yield
    assert params.recorder is None, "a test must end the session that it begins in the process of the tests"


@pytest.fixture(autouse=True)
def _network_devices_are_left_alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Keeps a test with containers apart from one with a browser in another worker.

    Containers add and remove network devices, and at each such change Chromium breaks all its connections
    off (net::ERR_NETWORK_CHANGED).
    """
    kinds = {"podman": fcntl.LOCK_EX, "browser": fcntl.LOCK_SH}
    lock = next((kind for fixture, kind in kinds.items() if fixture in request.fixturenames), None)
    if lock is None:
        yield
        return
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (folder / "network.lock").open("w") as file:
        fcntl.flock(file, lock)
        yield


def _using(base: Path) -> list[psutil.Process]:
    mark = str(base) + "/"
    found = []
    for process in psutil.process_iter():
        try:
            homes = [process.environ().get(name, "") for name in ("HOPYARD_HOME", "HOPYARD_REPLICA_DIR")]
            if process.pid != os.getpid() and (
                any(mark in home for home in homes) or any(mark in word for word in process.cmdline())
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []

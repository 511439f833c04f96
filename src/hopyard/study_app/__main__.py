"""`python -m hopyard.studies`: the command of a study's replicas, which runs by role.

Each process has a parent that restarts it when it is killed. A restarted driver uses the same port: workers
reconnect, and it resumes from the journal. A restarted worker opens its partitions again, and only its unit
is repeated; a hanging worker is killed. Remaining processes of a killed one (such as data loaders) are ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from hopyard.errors import HopyardError, SpecError
from hopyard.mop_runtime import watchdog
from hopyard.sdk.warn_once import warn_once
from hopyard.studies.process_context import STUDY_VARIABLE

_COMMAND_OF_ROLE = {
    role: (sys.executable, "-u", "-m", module)
    for role, module in (
        ("driver", "hopyard.study_app.driver_main"),
        ("worker", "hopyard.mop_runtime.worker.main"),
    )
}
# the limit of deaths within this time; a worker takes longer to start
_MAX_DEATHS, _DEATH_WINDOW_S = 10, {"driver": 60.0, "worker": 600.0}
_CLEANUP_TIMEOUT_S, _POLL_INTERVAL_S = 2.0, 0.01
_PR_SET_PDEATHSIG = 1


def main() -> int:
    role = os.environ.get("ROLE_NAME", "")
    if STUDY_VARIABLE not in os.environ:
        raise SpecError(
            "this process is not part of a study", hints=("start one with `hop search search.yaml`",)
        )
    if role not in _COMMAND_OF_ROLE:
        raise SpecError(f"a study has no role `{role}`", hints=("its roles are driver and worker",))
    return supervise(_COMMAND_OF_ROLE[role], role=role)


def supervise(
    command: Sequence[str], *, role: str = "driver", hang_timeout_s: float = watchdog.HANG_TIMEOUT_S
) -> int:
    """Runs `command` again whenever it is killed by a signal that was not forwarded; returns its exit code.
    Forwards SIGTERM, and ignores it afterwards. hang_timeout_s: for a worker without heartbeats."""
    worker_watchdog = (
        watchdog.Watchdog(warn_once, hang_timeout_s=hang_timeout_s) if role == "worker" else None
    )
    try:
        return _restart_until_exit(command, role, worker_watchdog)
    finally:
        # Python takes its handlers away as it exits; a signal that comes then must not become the exit code
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if worker_watchdog is not None:
            worker_watchdog.close()


def _restart_until_exit(command: Sequence[str], role: str, worker_watchdog: watchdog.Watchdog | None) -> int:
    child: subprocess.Popen[bytes] | None = None
    is_stopping = False

    def forward_signal(number: int, _frame: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        if child is not None and child.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(child.pid, number)

    signal.signal(signal.SIGTERM, forward_signal)
    pipes, environment = (
        (
            (worker_watchdog.write_fd,),
            os.environ | {watchdog.HEARTBEAT_PIPE_VARIABLE: str(worker_watchdog.write_fd)},
        )
        if worker_watchdog is not None
        else ((), None)
    )
    end_with_parent = partial(_end_with_parent, os.getpid())
    deaths: list[float] = []
    while True:
        # In its own process group, which is ended with it. preexec_fn is safe: there is one thread, and the
        # function makes only system calls.
        child = subprocess.Popen(
            command,
            env=environment,
            pass_fds=pipes,
            process_group=0,
            preexec_fn=end_with_parent,  # noqa: PLW1509
        )
        if worker_watchdog is not None:
            worker_watchdog.watch(child)
        if is_stopping:  # the signal arrived before the child existed
            os.kill(child.pid, signal.SIGTERM)
        code = _wait(child)
        if code >= 0 or is_stopping:
            return code if code >= 0 else 128 - code
        now = time.monotonic()
        deaths = [death_at for death_at in deaths if now - death_at < _DEATH_WINDOW_S[role]] + [now]
        if len(deaths) >= _MAX_DEATHS:
            print(
                f"error: the study's {role} was killed {len(deaths)} times within {_DEATH_WINDOW_S[role]:g} "
                f"s, by signal {-code} the last time",
                file=sys.stderr,
            )
            return 128 - code
        warn_once(f"the study's {role} was killed by signal {-code}; it resumes from its journal")


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Waits for the process and ends the rest of its group.

    Its pid is not reused until its exit code is collected. Python's tracker of shared memory, which cleans up
    after a killed process, ignores SIGTERM and gets some time.
    """
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    deadline = time.monotonic() + _CLEANUP_TIMEOUT_S
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
        while _is_alive(child.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _is_alive(group: int) -> bool:
    """Returns whether a process of the group runs."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, process_group = file.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state not in "ZX":
                return True
    return False


def _end_with_parent(parent: int) -> None:
    """A driver or worker must end when its parent was killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the death signal was set


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HopyardError as error:
        print(
            "\n".join([f"error: {error.message}", *(f"hint: {hint}" for hint in error.hints)]),
            file=sys.stderr,
            flush=True,
        )
        sys.exit(1)

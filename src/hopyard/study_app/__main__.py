"""`python -m hopyard.studies`: what the replicas of a study run, each by its role.

Each process is watched by a parent that starts it again when it is killed. A driver is at the same port then:
workers connect anew, and the journal tells it where it was. A worker opens its partitions again, and only its
unit is repeated; one that hangs is killed for that. What a process leaves behind (the processes of a data
loader) ends with it.
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
# so many in this time, and it is no accident; a worker imports more
_MAX_DEATHS, _DEATH_WINDOW_S = 10, {"driver": 60.0, "worker": 600.0}
_CLEANUP_TIMEOUT_S, _POLL_INTERVAL_S = 2.0, 0.01
_PR_SET_PDEATHSIG = 1


def main() -> int:
    role = os.environ.get("ROLE_NAME", "")
    if STUDY_VARIABLE not in os.environ:
        raise SpecError("this process is not part of a study", hints=("`hop search search.yaml` starts one",))
    if role not in _COMMAND_OF_ROLE:
        raise SpecError(f"a study has no role `{role}`", hints=("its roles are driver and worker",))
    return supervise(_COMMAND_OF_ROLE[role], role=role)


def supervise(
    command: Sequence[str], *, role: str = "driver", hang_timeout_s: float = watchdog.HANG_TIMEOUT_S
) -> int:
    """Run `command` again whenever a signal ends it that we did not pass on; its exit code.
    SIGTERM is passed on. hang_timeout_s: with a worker that gives no sign."""
    child: subprocess.Popen[bytes] | None = None
    asked = False

    def pass_on(number: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        if child is not None and child.returncode is None:
            with suppress(ProcessLookupError):  # its end was asked for just now
                os.kill(child.pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    felt = watchdog.Watchdog(warn_once, hang_timeout_s=hang_timeout_s) if role == "worker" else None
    pipes, environment = (
        ((felt.write_fd,), os.environ | {watchdog.HEARTBEAT_PIPE_VARIABLE: str(felt.write_fd)})
        if felt is not None
        else ((), None)
    )
    die_too = partial(_end_with_parent, os.getpid())
    deaths: list[float] = []
    while True:
        # A group of its own, which ends with it; preexec_fn: here is one thread, and it makes nothing but
        # system calls.
        child = subprocess.Popen(
            command,
            env=environment,
            pass_fds=pipes,
            process_group=0,
            preexec_fn=die_too,  # noqa: PLW1509
        )
        if felt is not None:
            felt.watch(child)
        if asked:  # before there was anybody to pass it on to
            os.kill(child.pid, signal.SIGTERM)
        code = _wait(child)
        if code >= 0 or asked:
            return code if code >= 0 else 128 - code
        now = time.monotonic()
        deaths = [at for at in deaths if now - at < _DEATH_WINDOW_S[role]] + [now]
        if len(deaths) >= _MAX_DEATHS:
            print(
                f"error: the study's {role} was killed {len(deaths)} times within {_DEATH_WINDOW_S[role]:g} "
                f"s, by signal {-code} the last time",
                file=sys.stderr,
            )
            return 128 - code
        warn_once(f"the study's {role} was killed by signal {-code}; it resumes from its journal")


def _wait(child: subprocess.Popen[bytes]) -> int:
    """For its end, and end what it leaves behind in its group: while nobody has asked for its exit code its
    number is no other's. What tidies up after a process that was killed (Python's tracker of shared memory)
    does not heed SIGTERM, and has a while for that."""
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    until = time.monotonic() + _CLEANUP_TIMEOUT_S
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
        while _is_alive(child.pid) and time.monotonic() < until:
            time.sleep(_POLL_INTERVAL_S)
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _is_alive(group: int) -> bool:
    """Whether a process of the group runs."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = file.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


def _end_with_parent(parent: int) -> None:
    """A driver or worker whose parent was killed is nobody's."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before the kernel knew that this one goes with it


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

"""`python container_process.py SOCKET CONTAINER`: starts a container, and represents its first process.

The replica supervises this process as it would the script itself: signals go on to the container, and the
exit is that of the container. Standard input is a channel to the replica: `{"pid": …}` once the container
runs, `{"error": …}` if it does not start, `{"end": {"code": …, "oom": …}}` at its end. The code is null if
the engine does not know it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerError
from hopyard.replica.container.oom_watch import OomWatch

_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_END_SIGNAL = signal.SIGRTMIN
_STATE_TIMEOUT_S, _INTERVAL_S = 60.0, 0.05  # the first one is for an engine that answers
_AWAY_INTERVAL_S = 0.5
_WAIT_INTERVAL = "10s"  # at which Podman looks for the end
_RESTART_INTERVAL_S = 1.0
_UNKNOWN_CODE = 125
# signals that end no process by default
_HARMLESS = (
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGURG,
    signal.SIGWINCH,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


class ContainerProcess:
    """channel: to the replica."""

    def __init__(self, api: EngineApi, container: str, channel: socket.socket) -> None:
        self._api, self._container, self._channel = api, container, channel

    def run(self) -> int:
        """Returns the exit code of the container, in the form of `subprocess.Popen.returncode`."""
        # blocked, not handled: a handler would make this process a receiver of requests to save
        signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, _END_SIGNAL})
        try:
            self._api.post(f"/containers/{self._container}/start")
            pid = int(self._state()["Pid"])
            self._send({"pid": pid})
        except (ContainerError, KeyError, TypeError, ValueError) as error:
            self._send({"error": str(error), "status": getattr(error, "status", 0)})
            return 125
        threading.Thread(target=self._keep_service, daemon=True).start()
        watch = OomWatch(pid) if pid else None
        waiter = threading.Thread(target=self._await_end, args=(pid, watch), daemon=True)
        waiter.start()
        while (number := signal.sigwait({*_FORWARDED, _END_SIGNAL})) != _END_SIGNAL:
            self._forward(pid, number)
        state = self._final_state()
        code = int(state.get("ExitCode", -1))
        is_known = code >= 0  # Podman has -1 for a container that lost its monitor
        oom = bool(state.get("OOMKilled")) or (watch is not None and watch.kills > 0)
        self._send({"end": {"code": code if is_known else None, "oom": oom}})
        return code if is_known else _UNKNOWN_CODE

    def _await_end(self, pid: int, watch: OomWatch | None) -> None:
        try:
            descriptor = os.pidfd_open(pid) if pid else -1
        except ProcessLookupError:
            descriptor = -1
        if descriptor >= 0:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            while True:
                if watch is not None and watch.descriptor >= 0:
                    with suppress(OSError):
                        poller.register(watch.descriptor, watch.events)
                ready = dict(poller.poll())
                if descriptor in ready:
                    break
                if watch is not None and not watch.read():
                    poller.unregister(watch.descriptor)
                    watch.close()
        if watch is not None:
            watch.count()
        signal.pthread_kill(threading.main_thread().ident or 0, _END_SIGNAL)

    def _keep_service(self) -> None:
        """Keeps a request at the service that was started for containers, which ends without any. Starts it
        again if it was killed: otherwise the exit code of the container would be lost."""
        from hopyard.container_engine.engine_discovery import is_own_service, start_podman_service  # late

        if not is_own_service(self._api.path):
            return
        api = EngineApi(self._api.path, timeout_s=None)
        while True:
            try:
                api.post(f"/containers/{self._container}/wait", interval=_WAIT_INTERVAL)
                return
            except ContainerError as error:
                if error.status:
                    return
            with suppress(ContainerError, OSError):
                start_podman_service()
            time.sleep(_RESTART_INTERVAL_S)

    def _forward(self, pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            with suppress(ContainerError):
                self._api.post(f"/containers/{self._container}/kill", signal=signal.Signals(number).name)

    def _final_state(self) -> dict[str, Any]:
        """Waits until the engine has noticed the end. Only the engine knows the exit code, so it is awaited
        without a limit while it is away. Returns {} if an engine that answers does not notice it: Podman, if
        the container's monitor was killed."""
        give_up_at = time.monotonic() + _STATE_TIMEOUT_S
        while True:
            try:
                state = self._state()
                if not state.get("Running"):
                    return state
            except ContainerError as error:
                if not error.status:  # away
                    time.sleep(_AWAY_INTERVAL_S)
                    give_up_at = time.monotonic() + _STATE_TIMEOUT_S
                    continue
            if time.monotonic() > give_up_at:
                return {}
            time.sleep(_INTERVAL_S)

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._api.get(f"/containers/{self._container}/json")["State"]
        return state

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")


def exit_like(code: int) -> None:
    """Ends this process with an exit code, or by the signal that the code means."""
    number = code - 128
    if 0 < number < _END_SIGNAL and number not in _HARMLESS:
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(code)


def main() -> None:
    channel = socket.socket(fileno=os.dup(0))
    os.set_inheritable(channel.fileno(), False)
    exit_like(ContainerProcess(EngineApi(Path(sys.argv[1])), sys.argv[2], channel).run())


if __name__ == "__main__":
    main()

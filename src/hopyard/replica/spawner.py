"""`python -m hopyard.replica.spawner SOCKET`: forks replicas on request, with all modules already imported.

SOCKET is the number of an inherited socket. Requests and answers are lines of JSON: `{"start": [folder, …],
"adopt": bool}` gives `{"started": [process id or null, …]}` (null: a replica is alive there, or has ended and
this is not an adoption), or `{"error": "…"}` if none was started. Single-threaded, so that a fork copies no
lock in use. Ends when the socket closes; the replicas continue.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # the imports create hardly any garbage; serve() enables it again

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from hopyard.config.descriptor_limit import raise_descriptor_limit
from hopyard.domain.replica import STATUS_FILE
from hopyard.private_files import GROUP_AND_OTHERS_BITS
from hopyard.replica import main as replica
from hopyard.replica.mount_namespace import detect_isolation_mode, open_user_namespace
from hopyard.replica.replica_dir import acquire_lock
from hopyard.replica.replica_log import redirect_standard_streams


def serve(descriptor: int) -> None:
    """Answers requests until the other end closes."""
    umask = os.umask(GROUP_AND_OTHERS_BITS)  # scripts get the old umask; Hopyard's own files are private
    connection = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own_descriptors = (descriptor, wake_read, wake_write)
    detect_isolation_mode()  # once, for all forked replicas
    gc.collect()
    # the collector never visits existing objects again, so forked replicas keep sharing their pages
    gc.freeze()
    gc.enable()
    pending = b""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    ready.register(wake_read, select.POLLIN)
    while True:
        for descriptor_ready, _ in ready.poll():
            if descriptor_ready == wake_read:
                _drain(wake_read)
                _reap()
                continue
            data = connection.recv(1 << 16)
            if not data:
                return
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                connection.sendall(json.dumps(_handle_request(line, own_descriptors, umask)).encode() + b"\n")


def _handle_request(line: bytes, parent_descriptors: Sequence[int], umask: int) -> dict[str, object]:
    request = json.loads(line)
    adopt = bool(request["adopt"])
    locked: dict[Path, int | None] = {}
    started: list[int | None] = []
    namespace: int | None = None
    try:
        for name in request["start"]:
            locked[Path(name)] = _take_folder_lock(Path(name), adopt)
        # The child inherits the lock taken here, so it never appears dead.
        locks = [lock for lock in locked.values() if lock is not None]
        namespace = open_user_namespace() if len(locks) > 1 and not adopt else None
        for folder, lock in locked.items():
            unneeded = (*parent_descriptors, *(other for other in locks if other != lock))
            started.append(None if lock is None else _fork(folder, lock, adopt, unneeded, umask, namespace))
    except OSError as error:
        for pid in started:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        return {"error": str(error)}
    finally:
        for descriptor in (*locked.values(), namespace):
            if descriptor is not None:
                os.close(descriptor)
    return {"started": started}


def _take_folder_lock(folder: Path, adopt: bool) -> int | None:
    lock = acquire_lock(folder)
    if lock is not None and not adopt and (folder / STATUS_FILE).exists():
        os.close(lock)
        return None
    return lock


def _fork(
    folder: Path,
    lock: int,
    adopt: bool,
    descriptors_to_close: Sequence[int],
    umask: int,
    namespace: int | None,
) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70  # stays if the replica's own code is not reached
    try:
        signal.set_wakeup_fd(-1)
        for descriptor in descriptors_to_close:
            os.close(descriptor)
        os.setsid()
        raise_descriptor_limit()  # the soft limit of the spawner may have been lowered meanwhile
        redirect_standard_streams(folder)
        code = replica.run(folder, adopt=adopt, lock=lock, umask=umask, namespace=namespace)
    finally:
        # Never back into the spawner's loop, and without its exit functions.
        os._exit(code)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        return


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        sys.exit("usage: python -m hopyard.replica.spawner SOCKET (the number of an inherited socket)")
    serve(int(sys.argv[1]))

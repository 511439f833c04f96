"""A small process beside each replica that ends what the script started when the replica is killed.

The kernel ends the script itself with its replica, but not what the script has started: without a server,
nothing else would look after that. It stands outside of the replica's process tree, holds no lock, and does
nothing while the replica lives.
"""

from __future__ import annotations

import os
import signal

from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.leftover_processes import kill_leftover_processes
from hopyard.replica.replica_dir import ReplicaDir


class OrphanKiller:
    """Made before the replica has threads, and before it adopts orphans: lock is the descriptor of its
    folder's lock."""

    def __init__(self, folder: ReplicaDir, spec: ReplicaSpec, lock: int) -> None:
        watched, self._alive_pipe = os.pipe2(os.O_CLOEXEC)
        between = os.fork()
        if between == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    _kill_when_replica_dies(folder, spec, watched, (self._alive_pipe, lock))
            finally:
                os._exit(0)
        os.close(watched)
        os.waitpid(between, 0)

    def dismiss(self) -> None:
        """The replica ends by itself: nothing of its script is left."""
        try:
            os.write(self._alive_pipe, b".")
        except OSError:
            pass  # it was killed itself
        os.close(self._alive_pipe)


def _kill_when_replica_dies(
    folder: ReplicaDir, spec: ReplicaSpec, pipe: int, descriptors_to_close: tuple[int, ...]
) -> None:
    for descriptor in descriptors_to_close:
        os.close(descriptor)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(pipe, 1) == b"":  # the kernel closed the replica's end
        kill_leftover_processes(folder, spec, folder.read_state())

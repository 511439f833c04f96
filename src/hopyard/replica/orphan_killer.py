"""A small process beside each replica that ends the script's processes when the replica is killed.

The kernel ends the script itself with its replica, but not the processes that the script has started. Without
a server nothing else would end them. The process is outside of the replica's process tree, holds no lock, and
is idle while the replica lives.
"""

from __future__ import annotations

import os
import signal

from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.leftover_processes import kill_leftover_processes, remove_leftover_container
from hopyard.replica.replica_dir import ReplicaDir


class OrphanKiller:
    """Must be created before the replica has threads and becomes a subreaper. lock: the descriptor of its
    folder's lock."""

    def __init__(self, folder: ReplicaDir, spec: ReplicaSpec, lock: int) -> None:
        read_end, self._alive_pipe = os.pipe2(os.O_CLOEXEC)
        intermediate = os.fork()
        if intermediate == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    _kill_when_replica_dies(folder, spec, read_end, (self._alive_pipe, lock))
            finally:
                os._exit(0)
        os.close(read_end)
        os.waitpid(intermediate, 0)

    def dismiss(self) -> None:
        """The replica ends normally: no process of its script remains."""
        try:
            os.write(self._alive_pipe, b".")
        except OSError:
            pass  # the orphan killer itself was killed
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
        remove_leftover_container(spec)

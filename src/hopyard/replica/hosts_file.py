"""The file /etc/hosts of the processes of a gang, which has the names of its replicas."""

from __future__ import annotations

import os
from pathlib import Path

from hopyard.domain.replica import ReplicaSpec
from hopyard.private_files import write_atomically
from hopyard.replica.replica_log import log

_SYSTEM_FILE = Path("/etc/hosts")


def mount_hosts_file(spec: ReplicaSpec, folder: Path) -> dict[Path, Path]:
    """Writes the file into `folder`. Returns the mount that gives it to the processes of the run, as in
    `MountView.mounts`; none for a run without a gang, or where the machine has no such file.

    It has the lines of the machine, so that all other names stay as they are.
    """
    if not spec.launch.in_gang or not spec.node.hosts:
        return {}
    file = folder / "hosts"
    try:
        lines = _SYSTEM_FILE.read_bytes().removesuffix(b"\n").split(b"\n")
        lines += [f"{address}\t{name}".encode() for name, address in spec.node.hosts.items()]
        write_atomically(file, b"\n".join(lines) + b"\n")
    except OSError as error:  # the variable HOPYARD_HOSTS has the addresses, too
        log(f"the names of the replicas do not resolve: {error}")
        return {}
    return {Path(os.path.realpath(_SYSTEM_FILE)): file.resolve()}

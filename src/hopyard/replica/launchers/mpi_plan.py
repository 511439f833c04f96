"""The plan of an MPI gang: its replicas, its credential, and the command of each process.

Standard library only, as all programs of this folder that run beside the processes of the user.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

PLAN_FILE = "mpi.json"
FAILURES_DIR = "mpi-failures"  # of ranks in this replica, one file for each
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class MpiPeer:
    name: str
    address: str
    port: int
    processes: int


@dataclass(frozen=True)
class MpiPlan:
    """secret: known to the replicas of the gang alone. name: of this replica. memory: the folder for the
    files and the shared memory of its daemons. command: of each process."""

    secret: str
    name: str
    memory: str
    python: str
    command: list[str]
    peers: list[MpiPeer]

    def peer(self, name: str) -> MpiPeer | None:
        return next((peer for peer in self.peers if name in (peer.name, peer.address)), None)

    def program(self, module: str) -> list[str]:
        """Returns the words that start a module of this folder, without the import hooks of a script."""
        return [self.python, "-S", "-m", f"{__package__}.{module}"]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def memory_folder(secret: str, name: str) -> Path:
    """Returns the folder for the files and the shared memory of the daemons of a replica. Only its gang can
    know the path."""
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else tempfile.gettempdir()
    digest = hashlib.blake2s(f"{secret} {name}".encode(), digest_size=8).hexdigest()
    return Path(parent, f"hopyard-mpi-{digest}")


def read_plan() -> MpiPlan:
    """Returns the plan in the folder of this replica."""
    with open(os.path.join(replica_folder(), PLAN_FILE), "rb") as file:
        values = json.load(file)
    return MpiPlan(**{**values, "peers": [MpiPeer(**peer) for peer in values["peers"]]})


def replica_folder() -> str:
    return os.environ["HOPYARD_REPLICA_DIR"]

"""One process of an MPI gang: `mpi_rank COMMAND...` runs the command with the variables of its rank.

Its output and its reports are those of the replica on which it runs, not of the first one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hopyard.private_files import make_folder, write_atomically
from hopyard.replica.launchers.mpi_plan import FAILURES_DIR, replica_folder
from hopyard.sdk.safe_points import SAFE_POINT_EXIT_CODE

# by the variable of torchrun, those of Open MPI and MPICH
_VARIABLES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}


def rank_variables(environ: dict[str, str]) -> dict[str, str]:
    """Returns the variables of torchrun for this process."""
    return {
        name: environ[source]
        for name, sources in _VARIABLES.items()
        for source in sources
        if source in environ
    }


def main(command: list[str]) -> int:
    variables = rank_variables(dict(os.environ))
    rank = variables.get("RANK", "0")
    os.chdir(os.environ.pop("HOPYARD_MPI_FOLDER", "."))
    streams = os.path.join(replica_folder(), "streams")
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(os.path.join(streams, name), os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    is_stopped = []
    process = subprocess.Popen(command, env={**os.environ, **variables})

    def forward(number: int, _frame: object) -> None:
        is_stopped.append(number)
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    code = process.wait()
    if code == SAFE_POINT_EXIT_CODE and rank != "0":
        # `mpirun` ends all processes with the first one, but rank 0 may still be saving
        while not is_stopped:
            time.sleep(0.05)
    elif code and not is_stopped:
        record_failure(rank, code)
    return code if code >= 0 else 128 - code


def record_failure(rank: str, code: int) -> None:
    folder = make_folder(Path(replica_folder()) / FAILURES_DIR)
    failure = {"rank": int(rank), "code": code, "at": time.time()}
    write_atomically(folder / rank, json.dumps(failure).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

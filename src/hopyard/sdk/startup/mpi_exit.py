"""Ends a process of MPI at an exception. `MPI_Finalize` at its exit would wait for the other processes."""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType, TracebackType


def install(_module: ModuleType) -> None:
    """_module: `mpi4py`. The launcher sees the exit code, and ends the others."""
    if os.environ.get("OMPI_COMM_WORLD_SIZE", "1") == "1":
        return
    previous = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, error, traceback)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)

    sys.excepthook = end

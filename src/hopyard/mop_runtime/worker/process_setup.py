"""Sets up a worker's process: its number of threads, and deterministic computation."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress

from hopyard.config.glibc_malloc import configure_malloc

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_RETAINED_BLOCK_BYTES, _RETAINED_HEAP_BYTES = 32 << 20, 256 << 20


def thread_count(deterministic: bool, threads: int, environ: Mapping[str, str] = os.environ) -> int:
    """threads: the requested number. 0: one thread if results must be deterministic, otherwise a fair share
    of the machine's processors."""
    if threads > 0:
        return threads
    if deterministic:
        return 1
    variable = environ.get("OMP_NUM_THREADS", "")
    if variable.isdecimal() and int(variable) > 0:
        return int(variable)
    local_world_size = environ.get("LOCAL_WORLD_SIZE", "")
    workers = (
        max(int(local_world_size) - 1, 1) if local_world_size.isdecimal() else 1
    )  # one of the replicas is the driver
    return max(len(os.sched_getaffinity(0)) // workers, 1) if hasattr(os, "sched_getaffinity") else 1


def environment(deterministic: bool, threads: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns variables that the process must have at its start, because libraries read them when they are
    loaded, and Python when it starts."""
    variables = dict.fromkeys(_THREAD_VARIABLES, str(thread_count(deterministic, threads, environ)))
    if deterministic:
        variables["PYTHONHASHSEED"] = environ.get("PYTHONHASHSEED") or "0"  # the order of sets of strings
        variables["CUBLAS_WORKSPACE_CONFIG"] = environ.get("CUBLAS_WORKSPACE_CONFIG") or ":4096:8"
        variables["TF_DETERMINISTIC_OPS"] = "1"
    return variables


def restart_with_environment(variables: Mapping[str, str]) -> None:
    """Restarts the process with the same command if it does not have these variables."""
    if any(os.environ.get(name) != value for name, value in variables.items()):
        os.environ.update(variables)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def apply_determinism(deterministic: bool, threads: int) -> None:
    """Applies the settings that can change while the process runs. Called before and after the import of the
    user's code, which may import PyTorch."""
    os.environ.update(environment(deterministic, threads))
    _retain_freed_memory()
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(thread_count(deterministic, threads))
    if deterministic:
        # On a GPU some operations have no deterministic form: PyTorch warns about each once.
        torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
        # it takes time, and such memory should never be read
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False


def _retain_freed_memory() -> None:
    """Keeps the freed memory of a batch for the next one. By default glibc returns much of it to the kernel,
    which clears every page again."""
    configure_malloc(
        mmap_bytes=None if os.environ.get("MALLOC_MMAP_THRESHOLD_") else _RETAINED_BLOCK_BYTES,
        trim_bytes=None if os.environ.get("MALLOC_TRIM_THRESHOLD_") else _RETAINED_HEAP_BYTES,
    )


def kill_process(reason: str) -> None:
    """Ends the process at once, from a thread other than the training thread, which cannot be stopped. Prints
    the stack for the user."""
    # to the descriptor: the user's code may have replaced sys.stderr
    with suppress(OSError):
        os.write(2, f"hopyard: this worker exits: {reason}. Its stack:\n".encode())
        faulthandler.dump_traceback(2)
    os.kill(os.getpid(), signal.SIGKILL)


def freeze_imported_objects() -> None:
    """Excludes imported objects from garbage collection. Otherwise the collector visits all of them
    repeatedly, with PyTorch for about 0.2 s each time, and finds garbage only among later objects."""
    gc.collect()
    gc.freeze()

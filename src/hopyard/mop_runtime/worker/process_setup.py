"""How a worker's process computes: how many threads, and whether the same comes out every time."""

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
    """threads: as asked for; 0: one where the result must not depend on it, else a fair share of the
    machine's processors."""
    if threads > 0:
        return threads
    if deterministic:
        return 1
    given = environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    local = environ.get("LOCAL_WORLD_SIZE", "")
    workers = max(int(local) - 1, 1) if local.isdecimal() else 1  # one of the replicas is the driver
    return max(len(os.sched_getaffinity(0)) // workers, 1) if hasattr(os, "sched_getaffinity") else 1


def environment(deterministic: bool, threads: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that the process must have when it starts: libraries read them as they are loaded, Python as
    it begins."""
    wanted = dict.fromkeys(_THREAD_VARIABLES, str(thread_count(deterministic, threads, environ)))
    if deterministic:
        wanted["PYTHONHASHSEED"] = environ.get("PYTHONHASHSEED") or "0"  # the order of sets of strings
        wanted["CUBLAS_WORKSPACE_CONFIG"] = environ.get("CUBLAS_WORKSPACE_CONFIG") or ":4096:8"
        wanted["TF_DETERMINISTIC_OPS"] = "1"
    return wanted


def restart_with_environment(variables: Mapping[str, str]) -> None:
    """A process without these variables begins once more, with the same command."""
    if any(os.environ.get(name) != value for name, value in variables.items()):
        os.environ.update(variables)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def apply_determinism(deterministic: bool, threads: int) -> None:
    """What can be set while the process runs. Called before the user's code is imported and again after,
    since that may be what imports PyTorch."""
    os.environ.update(environment(deterministic, threads))
    _retain_freed_memory()
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.set_num_threads(thread_count(deterministic, threads))
    if deterministic:
        # On a GPU some operations have no deterministic form: PyTorch warns of them, once each.
        torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
        # it costs time, and such memory should never be read
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.benchmark = False


def _retain_freed_memory() -> None:
    """What one batch frees is kept for the next: by default, glibc gives much of it back to the kernel, which
    clears every page anew."""
    configure_malloc(
        mmap_bytes=None if os.environ.get("MALLOC_MMAP_THRESHOLD_") else _RETAINED_BLOCK_BYTES,
        trim_bytes=None if os.environ.get("MALLOC_TRIM_THRESHOLD_") else _RETAINED_HEAP_BYTES,
    )


def kill_process(reason: str) -> None:
    """At once, from another thread than the one that trains, which cannot be stopped.
    Where that was is what its user needs to know."""
    # to the file itself: the user's code may have put anything in the place of sys.stderr
    with suppress(OSError):
        os.write(2, f"hopyard: this worker exits: {reason}. Its stack:\n".encode())
        faulthandler.dump_traceback(2)
    os.kill(os.getpid(), signal.SIGKILL)


def freeze_imported_objects() -> None:
    """What was imported stays. The collector looks through everything it knows of again and again, with
    PyTorch for some 0.2 s each time, and what it finds is in what came later."""
    gc.collect()
    gc.freeze()

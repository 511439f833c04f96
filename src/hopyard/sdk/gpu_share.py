"""A run that shares a GPU: PyTorch keeps to its part of the memory by itself, so that it ends with PyTorch's
own error, which a script may handle, before the replica has to end it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# what the driver takes for a process beside what PyTorch allocates; of a small share, a quarter
_CUDA_CONTEXT_BYTES = 768 * 1024**2
_limit_set = False


def limit_torch_memory() -> None:
    """Tell PyTorch, once it was imported, how much of the card is ours.
    Starts no CUDA: where there is none yet, PyTorch does it as it begins. Cheap to call again."""
    global _limit_set
    torch = sys.modules.get("torch")
    if _limit_set or torch is None or not hasattr(torch, "cuda"):
        return
    _limit_set = True
    given = os.environ.get("HOPYARD_GPU_MEMORY", "")
    if not given.isdecimal():
        return
    own_bytes = int(given) - min(_CUDA_CONTEXT_BYTES, int(given) // 4)

    def limit() -> None:
        with suppress(Exception):
            for device in range(torch.cuda.device_count()):
                total = torch.cuda.get_device_properties(device).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, own_bytes / total), device)

    with suppress(Exception):  # a version of PyTorch that has it otherwise: the replica watches all the same
        torch.cuda._lazy_call(limit)

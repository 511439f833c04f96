"""Limits PyTorch's memory in a run that shares a GPU.

A script over its share gets PyTorch's own error, which it can handle, before the replica has to end it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# memory that the driver uses per process beside PyTorch's allocations; at most a quarter of a small share
_CUDA_CONTEXT_BYTES = 768 * 1024**2
_limit_set = False


def limit_torch_memory() -> None:
    """Sets PyTorch's share of the GPU's memory once PyTorch is imported. Cheap to call again.

    It does not initialize CUDA: PyTorch applies the limit when it initializes CUDA itself.
    """
    global _limit_set
    torch = sys.modules.get("torch")
    if _limit_set or torch is None or not hasattr(torch, "cuda"):
        return
    _limit_set = True
    share_text = os.environ.get("HOPYARD_GPU_MEMORY", "")
    if not share_text.isdecimal():
        return
    own_bytes = int(share_text) - min(_CUDA_CONTEXT_BYTES, int(share_text) // 4)

    def limit() -> None:
        with suppress(Exception):
            for device in range(torch.cuda.device_count()):
                total = torch.cuda.get_device_properties(device).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, own_bytes / total), device)

    with suppress(Exception):  # a PyTorch version without this function: the replica still enforces the limit
        torch.cuda._lazy_call(limit)

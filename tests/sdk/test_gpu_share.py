"""PyTorch receives the run's share of a GPU when it first uses the GPU, not before."""

from __future__ import annotations

import importlib.util

import pytest

from .scripts import Replica

CODE = """
import os, torch, hopyard as hop
from hopyard.sdk import gpu_share
told = []
class Card: total_memory = 40 * 2**30
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_properties = lambda _device: Card
def tell(fraction, device): told.append((round(fraction, 4), device))
torch.cuda.set_per_process_memory_fraction = tell
for part in (20 * 2**30, 2**30, 0):
    os.environ['HOPYARD_GPU_MEMORY'] = str(part or '')
    gpu_share._limit_set, before = False, len(torch.cuda._queued_calls)
    hop.bind(x=1)
    hop.params(lr=0.1)
    queued = torch.cuda._queued_calls[before:]
    assert len(queued) == bool(part) and not torch.cuda.is_initialized()
    for call, _ in queued: call()
print(told)
"""


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_pytorch_respects_memory_share(replica: Replica) -> None:
    assert replica.run(CODE).stdout == f"[({(20 - 0.75) / 40:.4f}, 0), ({0.75 / 40:.4f}, 0)]\n"

"""What a replica asks for and a node has, in whole units so that sums are exact."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """The request of one replica.

    cpu_milli: thousandths of a core; what it is sure to get. cpu_limited: also the most it may use; otherwise it may use cores
    that nobody else wants. memory_bytes: 0 asks for none and sets no limit.
    gpus: whole GPUs. gpu_model: only this model (as a node names it, compared without case), None takes any.
    """

    cpu_milli: int = 1000
    memory_bytes: int = 0
    gpus: int = 0
    gpu_model: str | None = None
    cpu_limited: bool = False


UNNAMED_GPU = "GPU"  # the model of GPUs that were declared by their number alone


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """One GPU of a node. `index` is what CUDA_VISIBLE_DEVICES takes on that node."""

    index: int
    model: str
    memory_bytes: int = 0

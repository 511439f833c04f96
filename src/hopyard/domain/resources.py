"""What a replica asks for and a node has, in whole units so that sums are exact."""

from __future__ import annotations

from dataclasses import dataclass

WHOLE_GPU = 1000  # thousandths of one GPU


@dataclass(frozen=True, slots=True)
class Resources:
    """The request of one replica.

    cpu_milli: thousandths of a core; what it is sure to get. cpu_limited: also the most it may use; otherwise
    it may use cores that nobody else wants. memory_bytes: 0 asks for none and sets no limit.
    GPUs are asked for in one of three ways: `gpus` whole ones; `gpu_milli` (1 to 999) thousandths of one;
    `gpu_memory_bytes` of one, from which the share follows once the card is known. gpu_models: only these
    models (as a node names them, compared without case), () takes any. extras: other countable things by
    name, sorted by name ("fpga", 1).
    """

    cpu_milli: int = 1000
    memory_bytes: int = 0
    gpus: int = 0
    gpu_models: tuple[str, ...] = ()
    cpu_limited: bool = False
    gpu_milli: int = 0
    gpu_memory_bytes: int = 0
    extras: tuple[tuple[str, int], ...] = ()

    @property
    def is_gpu_share(self) -> bool:
        """Whether it asks for a part of one GPU."""
        return self.gpu_milli > 0 or self.gpu_memory_bytes > 0

    def gpu_milli_on(self, gpu: Gpu) -> int:
        """Thousandths of this GPU that one replica takes of each GPU it gets; more than 1000 where the card
        is too small. A share by memory needs a card that says how much it has: on others it takes the whole
        card."""
        if self.gpu_memory_bytes:
            return (
                -(-self.gpu_memory_bytes * WHOLE_GPU // gpu.memory_bytes) if gpu.memory_bytes else WHOLE_GPU
            )
        return self.gpu_milli or WHOLE_GPU


UNKNOWN_GPU_MODEL = "GPU"  # the model of GPUs that were declared by their number alone


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """One GPU of a node. `index` is what CUDA_VISIBLE_DEVICES takes on that node."""

    index: int
    model: str
    memory_bytes: int = 0

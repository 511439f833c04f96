"""The request of a replica and the capacity of a node, in whole units, so that sums are exact."""

from __future__ import annotations

from hopyard.backports import dataclass

WHOLE_GPU = 1000  # thousandths of one GPU


@dataclass(frozen=True, slots=True)
class Resources:
    """The request of one replica.

    cpu_milli: guaranteed thousandths of a core. cpu_limited: whether this is also its limit; otherwise it may
    use idle cores. memory_bytes: 0 requests none and sets no limit.

    GPUs are requested in one of three ways: `gpus` whole GPUs; `gpu_milli` (1 to 999) thousandths of one;
    `gpu_memory_bytes` of one, which becomes a share once the card is known. gpu_models: allowed models (as
    nodes name them, case-insensitive), () for any. extras: other countable resources by name, sorted by name
    ("fpga", 1).
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
        """Whether it requests a share of one GPU."""
        return self.gpu_milli > 0 or self.gpu_memory_bytes > 0

    def gpu_milli_on(self, gpu: Gpu) -> int:
        """Returns the thousandths that one replica takes of this GPU; more than 1000 if the card is too
        small.

        A share by memory needs a card with a known memory size; of other cards, it takes the whole card.
        """
        if self.gpu_memory_bytes:
            return (
                -(-self.gpu_memory_bytes * WHOLE_GPU // gpu.memory_bytes) if gpu.memory_bytes else WHOLE_GPU
            )
        return self.gpu_milli or WHOLE_GPU


UNKNOWN_GPU_MODEL = "GPU"  # the model of GPUs that were declared by number only


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """One GPU of a node. `index`: its number for CUDA_VISIBLE_DEVICES on that node."""

    index: int
    model: str
    memory_bytes: int = 0

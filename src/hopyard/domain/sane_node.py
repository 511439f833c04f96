"""What an engine says of a node is not believed blindly: a wrong figure must not bring down who plans with
it."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.cluster import Node
from hopyard.domain.resources import UNNAMED_GPU, Gpu

MOST_CPU_MILLI = 10**8  # a hundred thousand cores
MOST_BYTES = 2**56
MOST_GPUS = 1024
MOST_OF_AN_EXTRA = 10**9


def sane_node(node: Node) -> tuple[Node, tuple[str, ...]]:
    """The node with impossible amounts put right, and a sentence on each of them: below zero is none, more
    than any machine has is none either, and of several GPUs with one index the first counts. A node that is
    right is returned as it is."""
    wrong: list[str] = []
    cpu = _amount(node.cpu_milli, MOST_CPU_MILLI, "thousandths of a core", wrong)
    memory = _amount(node.memory_bytes, MOST_BYTES, "bytes of memory", wrong)
    gpus = _gpus(node.gpus, wrong)
    extras = {
        name: _amount(count, MOST_OF_AN_EXTRA, f"of `{name}`", wrong) for name, count in node.extras.items()
    }
    if not wrong:
        return node, ()
    return replace(node, cpu_milli=cpu, memory_bytes=memory, gpus=gpus, extras=extras), tuple(wrong)


def _amount(said: int, most: int, what: str, wrong: list[str]) -> int:
    if 0 <= said <= most:
        return said
    wrong.append(f"it has {said} {what}")
    return 0


def _gpus(said: tuple[Gpu, ...], wrong: list[str]) -> tuple[Gpu, ...]:
    if len({gpu.index for gpu in said}) == len(said) <= MOST_GPUS and all(_is_sane(gpu) for gpu in said):
        return said
    found: dict[int, Gpu] = {}
    for gpu in said:
        if gpu.index < 0 or gpu.index in found or len(found) == MOST_GPUS:
            wrong.append(f"it has a GPU {gpu.index}" + (" twice" if gpu.index in found else ""))
            continue
        memory = _amount(gpu.memory_bytes, MOST_BYTES, f"bytes on GPU {gpu.index}", wrong)
        if not gpu.model:
            wrong.append(f"its GPU {gpu.index} is of no model")
        found[gpu.index] = replace(gpu, memory_bytes=memory, model=gpu.model or UNNAMED_GPU)
    return tuple(found.values())


def _is_sane(gpu: Gpu) -> bool:
    return gpu.index >= 0 and bool(gpu.model) and 0 <= gpu.memory_bytes <= MOST_BYTES

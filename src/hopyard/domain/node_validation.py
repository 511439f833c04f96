"""Validates the amounts that engines report for nodes: a wrong number must not crash the scheduler."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.cluster import Node
from hopyard.domain.resources import UNKNOWN_GPU_MODEL, Gpu

MAX_CPU_MILLI = 10**8  # a hundred thousand cores
MAX_BYTES = 2**56
MAX_GPUS = 1024
MAX_EXTRA_AMOUNT = 10**9


def validate_node(node: Node) -> tuple[Node, tuple[str, ...]]:
    """Returns the node with impossible amounts corrected, and a sentence on each of them.

    Amounts below zero, or above those of any machine, become zero. Of several GPUs with one index, the first
    counts. A valid node is returned unchanged.
    """
    problems: list[str] = []
    cpu = _validate_amount(node.cpu_milli, MAX_CPU_MILLI, "thousandths of a core", problems)
    memory = _validate_amount(node.memory_bytes, MAX_BYTES, "bytes of memory", problems)
    gpus = _validate_gpus(node.gpus, problems)
    extras = {
        name: _validate_amount(count, MAX_EXTRA_AMOUNT, f"of `{name}`", problems)
        for name, count in node.extras.items()
    }
    if not problems:
        return node, ()
    return replace(node, cpu_milli=cpu, memory_bytes=memory, gpus=gpus, extras=extras), tuple(problems)


def _validate_amount(reported: int, maximum: int, subject: str, problems: list[str]) -> int:
    if 0 <= reported <= maximum:
        return reported
    problems.append(f"it has {reported} {subject}")
    return 0


def _validate_gpus(reported: tuple[Gpu, ...], problems: list[str]) -> tuple[Gpu, ...]:
    if len({gpu.index for gpu in reported}) == len(reported) <= MAX_GPUS and all(
        _is_valid_gpu(gpu) for gpu in reported
    ):
        return reported
    gpus: dict[int, Gpu] = {}
    for gpu in reported:
        if gpu.index < 0 or gpu.index in gpus or len(gpus) == MAX_GPUS:
            problems.append(f"it has a GPU {gpu.index}" + (" twice" if gpu.index in gpus else ""))
            continue
        memory = _validate_amount(gpu.memory_bytes, MAX_BYTES, f"bytes on GPU {gpu.index}", problems)
        if not gpu.model:
            problems.append(f"its GPU {gpu.index} has no model")
        gpus[gpu.index] = replace(gpu, memory_bytes=memory, model=gpu.model or UNKNOWN_GPU_MODEL)
    return tuple(gpus.values())


def _is_valid_gpu(gpu: Gpu) -> bool:
    return gpu.index >= 0 and bool(gpu.model) and 0 <= gpu.memory_bytes <= MAX_BYTES

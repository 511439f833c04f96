"""What an engine says of a node is not believed blindly: a wrong figure must not bring down who plans with
it."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.cluster import Node
from hopyard.domain.resources import UNKNOWN_GPU_MODEL, Gpu

MAX_CPU_MILLI = 10**8  # a hundred thousand cores
MAX_BYTES = 2**56
MAX_GPUS = 1024
MAX_EXTRA_AMOUNT = 10**9


def validate_node(node: Node) -> tuple[Node, tuple[str, ...]]:
    """The node with impossible amounts put right, and a sentence on each of them: below zero is none, more
    than any machine has is none either, and of several GPUs with one index the first counts. A node that is
    right is returned as it is."""
    wrong: list[str] = []
    cpu = _validate_amount(node.cpu_milli, MAX_CPU_MILLI, "thousandths of a core", wrong)
    memory = _validate_amount(node.memory_bytes, MAX_BYTES, "bytes of memory", wrong)
    gpus = _validate_gpus(node.gpus, wrong)
    extras = {
        name: _validate_amount(count, MAX_EXTRA_AMOUNT, f"of `{name}`", wrong)
        for name, count in node.extras.items()
    }
    if not wrong:
        return node, ()
    return replace(node, cpu_milli=cpu, memory_bytes=memory, gpus=gpus, extras=extras), tuple(wrong)


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
    found: dict[int, Gpu] = {}
    for gpu in reported:
        if gpu.index < 0 or gpu.index in found or len(found) == MAX_GPUS:
            problems.append(f"it has a GPU {gpu.index}" + (" twice" if gpu.index in found else ""))
            continue
        memory = _validate_amount(gpu.memory_bytes, MAX_BYTES, f"bytes on GPU {gpu.index}", problems)
        if not gpu.model:
            problems.append(f"its GPU {gpu.index} is of no model")
        found[gpu.index] = replace(gpu, memory_bytes=memory, model=gpu.model or UNKNOWN_GPU_MODEL)
    return tuple(found.values())


def _is_valid_gpu(gpu: Gpu) -> bool:
    return gpu.index >= 0 and bool(gpu.model) and 0 <= gpu.memory_bytes <= MAX_BYTES

"""Formats amounts for users."""

from __future__ import annotations

from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY
from hopyard.domain.resources import WHOLE_GPU


def format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_gpus(count: int, model: str = "") -> str:
    return format_count(count, f"{model} GPU" if model else "GPU")


def format_cpus(milli: int) -> str:
    amount = f"{milli / 1000:g}"
    return f"{amount} CPU" if amount == "1" else f"{amount} CPUs"


def format_bytes(count: int) -> str:
    """Bytes in binary units, at most one decimal."""
    amount, units = float(max(count, 0)), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"


def format_amount(resource: str, quantity: int) -> str:
    """Returns "16 GPUs", "0.5 a100 GPUs", "4 CPUs", "8 GiB of memory" or "2 fpga"."""
    if resource == CPU:
        return format_cpus(quantity)
    if resource == MEMORY:
        return f"{format_bytes(quantity)} of memory"
    if resource == GPU or resource.startswith(GPU_OF):
        model = resource[len(GPU_OF) :] + " " if resource != GPU else ""
        number = f"{quantity / WHOLE_GPU:g}"
        return f"{number} {model}GPU" if number == "1" else f"{number} {model}GPUs"
    return f"{quantity} {resource}"


def format_amount_without_unit(resource: str, quantity: int) -> str:
    """Returns the amount without its unit, which the next amount in the sentence repeats."""
    text = format_amount(resource, quantity)
    return text if resource == MEMORY else text.split(" ")[0]

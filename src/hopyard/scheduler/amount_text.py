"""Formats amounts for users."""

from __future__ import annotations

from collections.abc import Callable

LazyMessage = str | Callable[[], str]  # an expensive message is built when it is read


def render(message: LazyMessage) -> str:
    return message if isinstance(message, str) else message()


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

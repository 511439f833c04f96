"""Amounts as people say them."""

from __future__ import annotations

from collections.abc import Callable

Sentence = str | Callable[[], str]  # one that costs much is made when somebody reads it


def read(sentence: Sentence) -> str:
    return sentence if isinstance(sentence, str) else sentence()


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def gpus(count: int, model: str = "") -> str:
    return plural(count, f"{model} GPU" if model else "GPU")


def cpus(milli: int) -> str:
    amount = f"{milli / 1000:g}"
    return f"{amount} CPU" if amount == "1" else f"{amount} CPUs"


def size(count: int) -> str:
    """Bytes in binary units, at most one decimal."""
    amount, units = float(max(count, 0)), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"

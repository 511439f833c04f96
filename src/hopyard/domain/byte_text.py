"""Sizes as text."""

from __future__ import annotations


def format_bytes(amount: float) -> str:
    """Formats a size: `512 B`, `1.5 KiB`, `3.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"

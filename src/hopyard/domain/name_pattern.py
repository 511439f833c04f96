"""Patterns of the names of metrics."""

from __future__ import annotations

import re


def compile_name_pattern(text: str) -> re.Pattern[str]:
    """Compiles a text in which `*` is any text, and each other character itself. Call its `fullmatch`.

    Each part between two `*` is found once, at its first place: many `*` take no exponential time.
    """
    first, *others = map(re.escape, text.split("*"))
    if not others:
        return re.compile(first)
    *middle, last = others
    parts = "".join(f"(?>.*?{part})" for part in middle if part)
    return re.compile(f"{first}{parts}.*{last}", re.DOTALL)

"""Patterns of the names of metrics."""

from __future__ import annotations

import re


def compile_name_pattern(text: str) -> re.Pattern[str]:
    """Compiles a text in which `*` is any text, and each other character itself."""
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)

"""Single values of files that describe runs."""

from __future__ import annotations

import math
from typing import Any

from hopyard.config.params import Value
from hopyard.config.reader import Section, shown
from hopyard.domain.ids import check_name


def read_name(given: Section, key: str) -> str:
    """A name, "" where there is none. Raises SpecError."""
    text = given.text(key)
    return given.checked(key, lambda: check_name(text, what=key)) if text else ""


def read_flag(given: Section, key: str, *, default: bool) -> bool:
    """Raises SpecError."""
    value = given.values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise given.fail(
            key, f"{shown(value)} is neither true nor false", "write true or false, without quotes"
        )
    return value


def read_param(given: Section, key: str) -> Value:
    """What a parameter may be. Raises SpecError."""
    value: Any = given.values[key]
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise given.fail(
            key,
            f"{shown(value)} is not a single value",
            "a parameter is a text, a number, true, false or null; quote a date",
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise given.fail(
            key, f"{shown(value)} is not a finite number", 'write it in quotes to pass it as a text: "inf"'
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        raise given.fail(
            key, f"{shown(value)} is larger than 64 bits", "write it in quotes to pass it as a text"
        )
    return value

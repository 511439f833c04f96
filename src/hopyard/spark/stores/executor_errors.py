"""Extracts the error of an executor from Spark's exception."""

from __future__ import annotations

import re

from hopyard.errors import SpecError

_SPEC_ERROR = re.compile(r"hopyard\.errors\.SpecError: (.*)")
_HINT = re.compile(r"^\s*hint: (.*)", re.MULTILINE)


def executor_error(error: BaseException) -> SpecError | None:
    """Returns the SpecError that a task raised; None if Spark failed for another reason."""
    text = str(error)
    match = _SPEC_ERROR.search(text)
    if match is None:
        return None
    return SpecError(match.group(1).strip(), hints=tuple(_HINT.findall(text)))

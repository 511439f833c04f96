"""What went wrong in an executor, as this process may say it."""

from __future__ import annotations

import re

from hopyard.errors import SpecError

_SPEC_ERROR = re.compile(r"hopyard\.errors\.SpecError: (.*)")
_HINT = re.compile(r"^\s*hint: (.*)", re.MULTILINE)


def executor_error(error: BaseException) -> SpecError | None:
    """The SpecError that a task of ours raised; None where Spark failed of something else."""
    said = str(error)
    found = _SPEC_ERROR.search(said)
    if found is None:
        return None
    return SpecError(found.group(1).strip(), hints=tuple(_HINT.findall(said)))

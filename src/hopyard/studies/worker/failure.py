"""What is told of a unit that ended badly."""

from __future__ import annotations

import sys
from pathlib import Path

from hopyard.errors import HopyardError, NotFound, StorageFull
from hopyard.studies.messages import Failed
from hopyard.studies.trainable.load import told

_TEXT = 16_000  # characters of an error or traceback that are told; the first and the last ones count
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED",
)


class Cancelled(BaseException):
    """The unit is of no interest any more. No `Exception`, so that `except Exception` in the user's code lets
    it through."""


class Leaving(SystemExit):
    """The process was asked to end. The user's code may clean up on its way."""


class StateLacking(NotFound):
    """Nobody has the state that a unit begins with."""


class GroupBroken(ConnectionError):
    """Another member of the group went away, or failed."""


def failed(unit: str, bad: BaseException, code: Path, *, kind: str = "") -> Failed:
    """kind: where it is known; else told from the error."""
    kind = kind or _kind(bad)
    error = "".join(str(bad).strip() or type(bad).__name__)
    if not isinstance(bad, HopyardError):
        error = f"{type(bad).__name__}: {error}" if str(bad).strip() else error
    traceback = "" if isinstance(bad, (HopyardError, GroupBroken, Cancelled)) else told(bad, code)
    if isinstance(bad, HopyardError) and bad.hints:
        error += "".join(f"\nhint: {hint}" for hint in bad.hints)
    return Failed(unit=unit, kind=kind, error=_short(error), traceback=_short(traceback))


def _kind(bad: BaseException) -> str:
    match bad:
        case Cancelled():
            return "cancelled"
        case GroupBroken():
            return "group"
        case StateLacking():
            return "state"
        case StorageFull():
            return "memory"
    return "memory" if is_out_of_memory(bad) else "code"


def is_out_of_memory(bad: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(bad, MemoryError) or (torch is not None and isinstance(bad, torch.OutOfMemoryError)):
        return True
    return isinstance(bad, RuntimeError) and any(part in str(bad) for part in _NO_MEMORY)


def _short(text: str) -> str:
    if len(text) <= _TEXT:
        return text
    return f"{text[: _TEXT // 2]}\n[… {len(text) - _TEXT} characters …]\n{text[-_TEXT // 2 :]}"

"""What is told of a unit that ended badly."""

from __future__ import annotations

import sys
from pathlib import Path

from hopyard.errors import HopyardError, NotFound, StorageFull
from hopyard.mop_runtime.messages import UnitFailure
from hopyard.trainables.load import format_user_traceback

_MAX_TEXT_CHARS = (
    16_000  # characters of an error or traceback that are told; the first and the last ones count
)
_OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED",
)


class UnitCancelled(BaseException):
    """The unit is of no interest any more. No `Exception`, so that `except Exception` in the user's code lets
    it through."""


class WorkerExit(SystemExit):
    """The process was asked to end. The user's code may clean up on its way."""


class StateMissing(NotFound):
    """Nobody has the state that a unit begins with."""


class GroupBroken(ConnectionError):
    """Another member of the group went away, or failed."""


def make_failed(unit: str, exception: BaseException, code_dir: Path, *, kind: str = "") -> UnitFailure:
    """kind: where it is known; else told from the error."""
    kind = kind or _failure_kind(exception)
    error = "".join(str(exception).strip() or type(exception).__name__)
    if not isinstance(exception, HopyardError):
        error = f"{type(exception).__name__}: {error}" if str(exception).strip() else error
    traceback = (
        ""
        if isinstance(exception, (HopyardError, GroupBroken, UnitCancelled))
        else format_user_traceback(exception, code_dir)
    )
    if isinstance(exception, HopyardError) and exception.hints:
        error += "".join(f"\nhint: {hint}" for hint in exception.hints)
    return UnitFailure(unit=unit, kind=kind, error=_truncate(error), traceback=_truncate(traceback))


def _failure_kind(exception: BaseException) -> str:
    match exception:
        case UnitCancelled():
            return "cancelled"
        case GroupBroken():
            return "group"
        case StateMissing():
            return "state"
        case StorageFull():
            return "memory"
    return "memory" if is_out_of_memory(exception) else "code"


def is_out_of_memory(exception: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(exception, MemoryError) or (
        torch is not None and isinstance(exception, torch.OutOfMemoryError)
    ):
        return True
    return isinstance(exception, RuntimeError) and any(
        part in str(exception) for part in _OUT_OF_MEMORY_TEXTS
    )


def _truncate(text: str) -> str:
    if len(text) <= _MAX_TEXT_CHARS:
        return text
    return (
        f"{text[: _MAX_TEXT_CHARS // 2]}\n[… {len(text) - _MAX_TEXT_CHARS} characters …]\n"
        f"{text[-_MAX_TEXT_CHARS // 2 :]}"
    )

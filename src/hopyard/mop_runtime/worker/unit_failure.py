"""Describes a failed unit for the driver."""

from __future__ import annotations

import sys
from pathlib import Path

from hopyard.errors import HopyardError, NotFound, SpecError, StorageFull
from hopyard.mop_runtime.messages import UnitFailure
from hopyard.trainables.load import format_user_traceback

_MAX_TEXT_CHARS = 16_000  # maximum length of an error or traceback; its beginning and its end are kept
_OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED",
)


class UnitCancelled(BaseException):
    """The unit is not needed any more. It is not an `Exception`, so `except Exception` in the user's code
    does not catch it."""


class WorkerExit(SystemExit):
    """The process was requested to end. The user's code may clean up meanwhile."""


class StateMissing(NotFound):
    """No source has the start state of a unit."""


class PartitionClosed(SpecError):
    """The partition of a unit is not open on this worker."""


class GroupBroken(ConnectionError):
    """Another member of the group disconnected or failed."""


def make_failed(
    unit: str, exception: BaseException, code_dir: Path, *, kind: str = "", open_id: str = ""
) -> UnitFailure:
    """kind: if known; otherwise derived from the exception."""
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
    return UnitFailure(unit, kind, _truncate(error), _truncate(traceback), open_id)


def _failure_kind(exception: BaseException) -> str:
    match exception:
        case UnitCancelled():
            return "cancelled"
        case GroupBroken():
            return "group"
        case StateMissing():
            return "state"
        case PartitionClosed():
            return "partition"
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

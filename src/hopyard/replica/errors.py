"""Why a replica ends before, or instead of, its user's process."""

from __future__ import annotations

import errno
from pathlib import Path

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.preflight import CheckFailure
from hopyard.domain.replica import StopOrder


class PrepareFailed(Exception):
    """Code, data or environment could not be prepared, or the command could not be started.

    `reason` is a sentence for users. `code` follows the shell (125: failure around the command, 126: not
    executable, 127: not found).
    """

    def __init__(self, reason: str, code: int = 125) -> None:
        super().__init__(reason)
        self.exit = Exit(ExitKind.PREPARE_FAILED, code, reason)


class NodeFault(PrepareFailed):
    """A failure caused by this node or its server: the run is retried, here or on another node."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.exit = Exit(ExitKind.NODE_FAULT, 125, reason)


class PreflightFailed(NodeFault):
    """A check before the script starts failed."""

    def __init__(self, failure: CheckFailure) -> None:
        super().__init__(failure.reason())
        self.failure = failure


class UntrustedIndex(PrepareFailed):
    """A package index has no certificate that this node accepts, or only the requirements name it and it
    cannot be reached. The run's requirements, the index or the node may cause this, so the attempt counts as
    lost: the run is retried a few times, and then fails."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.exit = Exit(ExitKind.LOST, 125, reason)


# A run's own spec can cause these: names that are too long, too many arguments, a folder in place of a file.
_RUN_ERRNOS = frozenset(
    {
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EINVAL,
        errno.EILSEQ,
        errno.E2BIG,
        errno.ENOEXEC,
    }
)


def prepare_error(error: OSError, activity: str, *, is_node_fault: Path | None = None) -> PrepareFailed:
    """Maps a failed system call to an error. activity: the beginning of the sentence that describes the
    error. is_node_fault: a failure below this folder is a fault of the node."""
    file_text = f" ({error.filename})" if error.filename else ""
    reason = f"{activity}: {error.strerror or error}{file_text}"
    is_of_node = is_node_fault is not None and str(error.filename).startswith(str(is_node_fault))
    return PrepareFailed(reason) if error.errno in _RUN_ERRNOS and not is_of_node else NodeFault(reason)


class PreparationInterrupted(BaseException):
    """A check beside the preparation failed. Like `StopRequested`, it is not an Exception."""

    def __init__(self, failure: CheckFailure) -> None:
        super().__init__(failure.reason())
        self.failure = failure


class StopRequested(BaseException):
    """SIGTERM arrived while the replica prepares. It is not an Exception, like KeyboardInterrupt, so that no
    handler on the way swallows it."""

    def __init__(self, order: StopOrder) -> None:
        super().__init__(order.reason)
        self.order = order

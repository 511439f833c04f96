"""Why a replica ends before, or instead of, its user's process."""

from __future__ import annotations

import errno
from pathlib import Path

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.replica import StopOrder


class PrepareFailed(Exception):
    """Code, data or environment could not be put in place, or the command not be started. `reason` is a
    sentence for people; `code` what a shell would say (125: the run's surroundings, 126: not executable, 127:
    not found)."""

    def __init__(self, reason: str, code: int = 125) -> None:
        super().__init__(reason)
        self.exit = Exit(ExitKind.PREPARE_FAILED, code, reason)


class NodeFault(PrepareFailed):
    """The same for a reason of this node, or of its server: the run is tried again, there or elsewhere."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.exit = Exit(ExitKind.NODE_FAULT, 125, reason)


class UntrustedIndex(PrepareFailed):
    """A package index has no certificate that this node accepts. The run's requirements, the index or the
    node may cause this, so the attempt counts as lost: the run is tried again a few times, and then fails."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.exit = Exit(ExitKind.LOST, 125, reason)


# What a run asks for can cause these: names that are too long, arguments that are too many, a folder where a
# file should be.
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
    """What a system call that failed means. activity: the sentence that its error ends.
    is_node_fault: whatever fails below this folder is a fault of the node."""
    where = f" ({error.filename})" if error.filename else ""
    reason = f"{activity}: {error.strerror or error}{where}"
    is_of_node = is_node_fault is not None and str(error.filename).startswith(str(is_node_fault))
    return PrepareFailed(reason) if error.errno in _RUN_ERRNOS and not is_of_node else NodeFault(reason)


class StopRequested(BaseException):
    """SIGTERM came while the replica prepares. Not an Exception, as KeyboardInterrupt is none: nothing on the
    way may swallow it."""

    def __init__(self, order: StopOrder) -> None:
        super().__init__(order.reason)
        self.order = order

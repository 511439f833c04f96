"""All errors that the platform raises on purpose, grouped by how a caller handles them.

HopyardError
├── UsageError              the caller can fix it; carries hints
│   ├── SpecError           a value in a command, file or request is wrong; names its path
│   ├── NotFound            no run, dataset, version … has that name
│   ├── AuthError           the token is missing or invalid
│   │   ├── RunEnded        the run of this token has ended or was removed; the request is refused
│   │   └── Forbidden       the token is valid, but does not permit this
│   └── DoesNotFit          larger than any node
├── Conflict                the state has changed; read it again and retry
│   ├── MissingBlobs        the server lacks referenced bytes; upload them and retry
│   ├── BlobsOnOtherServer  referenced bytes are stored on another server,
│   │                       which is unreachable now
│   └── NotLeader           another server leads now; nothing was written
├── IntegrityError          bytes do not match their digest, or a stored structure is damaged
├── StorageFull             the disk of the server has no space left
│   └── QuotaExceeded       the user's storage quota is used up
├── ServerUnavailable       no server responds, or it could not be started
│   ├── ServerFault         the server failed while it handled the request;
│   │                       the same request may succeed later
│   └── TooManyRequests     the user exceeds a request limit of the server; wait and retry
├── StudyFailed             a study has no result: its trials failed
│   └── WorkersLost         all of its workers were killed; it may continue with new ones
└── EngineError
    ├── PortUnreachable     nothing of the run listens on this port
    ├── ContainerError      the container engine cannot be reached, or refuses a request
    ├── ConsoleUnreachable  the replica accepts no console now
    └── LaunchFailed        the gang could not be started; no replica of it remains
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence


class HopyardError(Exception):
    """Base of all deliberate errors.

    `code` is the stable error code that the API sends and clients match on; `hints` are the next steps for
    the user.
    """

    code = "error"
    hints: tuple[str, ...] = ()

    def __init__(self, message: str, *, hints: Sequence[str] = ()) -> None:
        notes = [f"hint: {hint}" for hint in hints]  # a traceback in a user's script shows them too
        if sys.version_info >= (3, 11):
            super().__init__(message)
            for note in notes:
                self.add_note(note)
        else:
            super().__init__("\n".join([message, *notes]))
        self.message = message
        self.hints = tuple(hints)


class UsageError(HopyardError):
    code = "usage"


class SpecError(UsageError):
    code = "bad_spec"


class NotFound(UsageError):
    code = "not_found"


class AuthError(UsageError):
    code = "not_authorised"


class RunEnded(AuthError):
    code = "run_over"


class Forbidden(AuthError):
    code = "forbidden"


class DoesNotFit(UsageError):
    code = "does_not_fit"


class Conflict(HopyardError):
    code = "conflict"


class NotLeader(Conflict):
    code = "not_leader"


class MissingBlobs(Conflict):
    """The server lacks some blobs. digests: of these blobs, in hex."""

    code = "missing_blobs"

    def __init__(self, message: str, *, digests: Sequence[str], hints: Sequence[str] = ()) -> None:
        super().__init__(message, hints=hints)
        self.digests = tuple(digests)


class BlobsOnOtherServer(Conflict):
    code = "blobs_elsewhere"


class IntegrityError(HopyardError):
    code = "damaged"


class StorageFull(HopyardError):
    code = "storage_full"


class QuotaExceeded(StorageFull):
    code = "quota_exceeded"


class ServerUnavailable(HopyardError):
    """retry_after_s: when a retry is worthwhile; None if that is unknown."""

    code = "server_unavailable"

    def __init__(
        self, message: str, *, hints: Sequence[str] = (), retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, hints=hints)
        self.retry_after_s = retry_after_s


class TooManyRequests(ServerUnavailable):
    code = "too_many_requests"


class ServerFault(ServerUnavailable):
    code = "server_fault"


class StudyFailed(HopyardError):
    code = "study_failed"


class WorkersLost(StudyFailed):
    """The workers were killed through no fault of their own, so an attempt with new ones may continue."""

    code = "workers_lost"


class DeliveryFailed(HopyardError):
    code = "delivery_failed"


class EngineError(HopyardError):
    code = "engine"


class PortUnreachable(EngineError):
    code = "port_unreachable"


class ConsoleUnreachable(EngineError):
    code = "console_unreachable"


class ContainerError(EngineError):
    """status: of the HTTP answer of the container engine; 0 if there was none."""

    code = "container"

    def __init__(self, message: str, *, status: int = 0, hints: Sequence[str] = ()) -> None:
        super().__init__(message, hints=hints)
        self.status = status


class ContainerEngineUnavailable(ContainerError):
    """The container engine does not answer, and may do so later: it was killed, is restarted, or hangs."""

    code = "container_engine_unavailable"


class LaunchFailed(EngineError):
    code = "launch_failed"


def is_disk_full(error: BaseException) -> bool:
    """Returns whether the error means that a disk, or a quota on it, has no space left."""
    return isinstance(error, StorageFull) or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    )


# ENOENT: a live process changed the folder while it was packed; a retry lists the folder again.
_TRANSIENT_ERRNOS = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EAGAIN,
        errno.EIO,
        errno.ENOENT,
    }
)


def is_transient(error: BaseException) -> bool:
    """Returns whether the error comes from a temporary fault of this machine.

    Such faults are a lack of descriptors, memory or space, a failing device, and a file that changed
    meanwhile.
    """
    os_error = error if isinstance(error, OSError) else error.__cause__
    return isinstance(os_error, OSError) and os_error.errno in _TRANSIENT_ERRNOS

"""Every error the platform raises on purpose, by what a caller would do about it.

HopyardError
├── UsageError              the caller can fix it; carries hints
│   ├── SpecError           a value in a command, file or request is wrong; names its path
│   ├── NotFound            no run, dataset, version … of that name
│   ├── AuthError           no token, or one that is not valid
│   │   ├── RunOver         a run's token, whose run is over or gone: nothing more of it is taken
│   │   └── Forbidden       a valid token that may not do this
│   └── DoesNotFit          larger than any node there is
├── Conflict                the world moved; look again and retry
│   ├── MissingBlobs        the server lacks bytes that the request refers to; upload and retry
│   ├── BlobsElsewhere      bytes that the request refers to lie with another server,
│   │                       which cannot be asked now
│   └── NotLeader           another server decides now; nothing was written
├── IntegrityError          bytes do not match their digest, or a stored structure is damaged
├── StorageFull             no space left where the bytes have to go
│   └── QuotaExceeded       no space left of what one user may fill
├── ServerUnavailable       no server answers, or it could not be started
│   ├── ServerFault         a server answers, but a fault of its own ended the request;
│   │                       the same request may succeed later
│   └── TooManyRequests     one user asks more of the server than it grants; wait and retry
├── StudyFailed             nothing came of a study: its trials failed
│   └── WorkersLost         all of its workers were killed; it may go on with others
└── EngineError
    └── LaunchFailed        the gang could not be started; nothing of it is left
"""

from __future__ import annotations

import errno
from collections.abc import Sequence


class HopyardError(Exception):
    """Base of all deliberate errors.

    `code` is the stable word that the API sends and clients match on; `hints` say what to do next.
    """

    code = "error"
    hints: tuple[str, ...] = ()

    def __init__(self, message: str, *, hints: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hints = tuple(hints)
        for hint in self.hints:
            self.add_note(f"hint: {hint}")  # a traceback in a user's script shows them too


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
    """The server lacks some blobs; `digests` names them (hex)."""

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
    """retry_after_s: when the same request is worth another try; None where that is not known."""

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
    """Not by what they did: an attempt with new ones may go on."""

    code = "workers_lost"


class EngineError(HopyardError):
    code = "engine"


class LaunchFailed(EngineError):
    code = "launch_failed"


def is_disk_full(error: BaseException) -> bool:
    """Whether it says that a disk, or a quota on it, has no space left."""
    return isinstance(error, StorageFull) or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    )


# ENOENT: what is packed is changed by a process that still lives, and listed again at the next try.
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
    """Whether it comes of trouble of this machine that may pass: no descriptors, memory or space left, a
    device that fails, a file that changed meanwhile."""
    failed = error if isinstance(error, OSError) else error.__cause__
    return isinstance(failed, OSError) and failed.errno in _TRANSIENT_ERRNOS

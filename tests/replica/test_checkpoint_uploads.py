"""How long something is tried to be stored."""

from __future__ import annotations

import errno

import pytest

from hopyard.errors import (
    IntegrityError,
    QuotaExceeded,
    ServerUnavailable,
    SpecError,
    StorageFull,
    is_transient,
)
from hopyard.replica import checkpoint_uploads
from hopyard.replica.checkpoint_uploads import UploadTimeout


def with_cause(error: Exception, cause: OSError) -> Exception:
    error.__cause__ = cause
    return error


def test_node_errors_are_transient_even_as_file_errors() -> None:
    for number in (errno.EMFILE, errno.ENOMEM, errno.EIO):
        assert is_transient(OSError(number, "it failed"))
        assert is_transient(with_cause(SpecError("`a` cannot be read"), OSError(number, "it failed")))
    assert not is_transient(OSError(errno.EACCES, "it may not be read"))
    assert not is_transient(SpecError("`a` changed"))


@pytest.mark.parametrize(
    ("failed", "is_bounded"),
    [
        (OSError(errno.EMFILE, "no descriptors"), True),
        (IntegrityError("damaged"), True),
        (QuotaExceeded("too much"), True),
        (ServerUnavailable("away"), False),
        (with_cause(ServerUnavailable("away"), FileNotFoundError(errno.ENOENT, "no socket")), False),
        (with_cause(StorageFull("full"), OSError(errno.ENOSPC, "full")), False),
    ],
)
def test_uploads_wait_for_server_and_briefly_for_node_errors(
    failed: Exception, is_bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_uploads, "SERVER_FAULT_TIMEOUT_S", -1.0)
    assert UploadTimeout().is_expired(failed, is_stopping=False) is is_bounded

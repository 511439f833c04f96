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


def caused(error: Exception, cause: OSError) -> Exception:
    error.__cause__ = cause
    return error


def test_trouble_of_the_node_passes_also_where_it_is_said_as_an_error_of_the_file() -> None:
    for number in (errno.EMFILE, errno.ENOMEM, errno.EIO):
        assert is_transient(OSError(number, "it failed"))
        assert is_transient(caused(SpecError("`a` cannot be read"), OSError(number, "it failed")))
    assert not is_transient(OSError(errno.EACCES, "it may not be read"))
    assert not is_transient(SpecError("`a` changed"))


@pytest.mark.parametrize(
    ("failed", "is_bounded"),
    [
        (OSError(errno.EMFILE, "no descriptors"), True),
        (IntegrityError("damaged"), True),
        (QuotaExceeded("too much"), True),
        (ServerUnavailable("away"), False),
        (caused(ServerUnavailable("away"), FileNotFoundError(errno.ENOENT, "no socket")), False),
        (caused(StorageFull("full"), OSError(errno.ENOSPC, "full")), False),
    ],
)
def test_a_server_that_is_away_or_full_is_waited_for_and_trouble_of_the_node_for_a_while(
    failed: Exception, is_bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_uploads, "SERVER_FAULT_TIMEOUT_S", -1.0)
    assert UploadTimeout().is_expired(failed, is_stopping=False) is is_bounded

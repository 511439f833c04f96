"""Which failures before the start are the run's own, and which its node's."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hopyard.errors import (
    AuthError,
    BlobsOnOtherServer,
    HopyardError,
    IntegrityError,
    MissingBlobs,
    NotFound,
    SpecError,
    StorageFull,
)
from hopyard.replica.errors import NodeFault, prepare_error
from hopyard.replica.prepare import _prepare_error


@pytest.mark.parametrize(
    ("number", "path", "is_of_node"),
    [
        (errno.ENOTDIR, "/home/cache/trees/ab", True),
        (errno.ENOTDIR, "/home/attempts/a/0/work/x", False),
        (errno.ENAMETOOLONG, "/home/attempts/a/0/work/x", False),
        (errno.EIO, "/home/attempts/a/0/work/x", True),
        (errno.EMFILE, None, True),
    ],
)
def test_failed_system_call_in_cache_is_node_fault(number: int, path: str | None, is_of_node: bool) -> None:
    result = prepare_error(OSError(number, "it failed", path), "preparing", is_node_fault=Path("/home/cache"))
    assert isinstance(result, NodeFault) is is_of_node


@pytest.mark.parametrize(
    ("failed", "is_of_node"),
    [
        (AuthError("the token is valid for longer than any"), True),
        (StorageFull("no space"), True),
        (BlobsOnOtherServer("they lie elsewhere"), True),
        (HopyardError("the server is confused"), True),
        (SpecError("a manifest leads out"), False),
        (NotFound("no such run"), False),
        (MissingBlobs("gone", digests=["ab"]), False),
        (IntegrityError("damaged"), False),
    ],
)
def test_server_error_fails_run_only_for_invalid_request(failed: HopyardError, is_of_node: bool) -> None:
    assert isinstance(_prepare_error(failed), NodeFault) is is_of_node

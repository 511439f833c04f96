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
def test_a_system_call_that_fails_in_the_cache_is_the_nodes_fault(
    number: int, path: str | None, is_of_node: bool
) -> None:
    found = prepare_error(OSError(number, "it failed", path), "preparing", is_node_fault=Path("/home/cache"))
    assert isinstance(found, NodeFault) is is_of_node


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
def test_an_answer_of_the_server_fails_the_run_only_where_what_it_asks_for_is_wrong(
    failed: HopyardError, is_of_node: bool
) -> None:
    assert isinstance(_prepare_error(failed), NodeFault) is is_of_node

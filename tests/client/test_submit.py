"""Submissions upload what the server lacks."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from hopyard.api_client import types as api
from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect
from hopyard.client.submit import send_with_blobs
from hopyard.datasets.pack import CODE_RULES, pack_tree
from hopyard.errors import MissingBlobs

_NAMED_DIGESTS = 3  # per response, where the server names 10,000


def test_upload_takes_as_many_rounds_as_it_needs(code: Path) -> None:
    for number in range(40):
        (code / f"{number}.txt").write_text(f"{code} {number}")
    tree = pack_tree(code, rules=CODE_RULES)
    rounds = 0

    def send(client: Client) -> api.RunOut:
        nonlocal rounds
        rounds += 1
        missing = client.missing(tree.blobs())
        if missing:
            raise MissingBlobs("blobs are missing", digests=missing[:_NAMED_DIGESTS])
        return cast("api.RunOut", {"id": "created"})

    _, run = send_with_blobs(connect(), send, tree, {})
    assert run["id"] == "created" and rounds > 10


def test_blobs_that_stay_missing_end_the_upload(code: Path) -> None:
    (code / "a.txt").write_text("a")
    tree = pack_tree(code, rules=CODE_RULES)

    def send(client: Client) -> api.RunOut:
        raise MissingBlobs("blobs are missing", digests=[tree.digest])

    with pytest.raises(MissingBlobs):
        send_with_blobs(connect(), send, tree, {})

"""Checkpoints that an evaluation cannot read any more."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from hopyard.api_client.client import Client
from hopyard.datasets.tree_cache import TreeCache
from hopyard.domain.evaluation import EVALUATION_VARIABLE
from hopyard.errors import Forbidden
from hopyard.sdk.run_checkpoints import RunCheckpoints
from hopyard.sdk.session import Session

ROW: dict[str, Any] = {"attempt": "r.1", "step": 3, "manifest": "a" * 64, "damaged": False, "path": ""}


class RefusingServer:
    """Lists checkpoints, and refuses to send their blobs."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def iterate_run_checkpoints(self, run: str) -> list[dict[str, Any]]:
        return self.rows

    def iterate_run_attempts(self, run: str) -> list[dict[str, Any]]:
        return [{"id": "r.1", "number": 1, "resumed_from_step": None}]

    def fetch(self, manifest: str, *_: object) -> bytes:
        raise Forbidden("the token of a run permits access to its own checkpoints only")


def open_checkpoint(server: RefusingServer, folder: Path) -> Path | None:
    evaluation = json.dumps({"run": "r", "newest": False, "step": None, "follow": True})
    checkpoints = RunCheckpoints(cast(Session, None), {EVALUATION_VARIABLE: evaluation})
    with ExitStack() as stack:
        cache = TreeCache(folder, 0)
        return checkpoints._open(cast(Client, server), cache, cast(Any, ROW), stack)


def test_checkpoint_that_was_removed_before_its_turn_is_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert open_checkpoint(RefusingServer([]), tmp_path) is None
    assert "the checkpoint of step 3 is skipped: it was removed meanwhile" in capfd.readouterr().err
    with pytest.raises(Forbidden):  # any other refusal is an error
        open_checkpoint(RefusingServer([ROW]), tmp_path)

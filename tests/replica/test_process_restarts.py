"""The checkpoint from which the next process of a replica starts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from hopyard.domain.replica import NodeContext, ReplicaSpec
from hopyard.replica.process_restarts import ProcessRestarts
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.server_connection import ServerConnection
from hopyard.replica.supervisor import Wakeup
from tests.replica.test_param_file import launch as make_launch


class ListingServer:
    """Lists checkpoints, and has the blobs of none."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.client = self
        self.rows, self.fetched = rows, list[str]()

    def iterate_run_checkpoints(self, run: str) -> list[dict[str, Any]]:
        return self.rows

    def fetch(self, manifest: str, *_: object) -> bytes:
        self.fetched.append(manifest)
        raise OSError("no blobs")


def test_files_that_the_script_saved_itself_are_not_restored(tmp_path: Path) -> None:
    rows = [
        {"step": 5, "manifest": "a" * 64, "damaged": True, "path": ""},
        {"step": 9, "manifest": "b" * 64, "damaged": False, "path": "work/out/checkpoint-9"},
    ]
    server = ListingServer(rows)
    node = NodeContext("local", str(tmp_path / "home"), str(tmp_path / "server"), 5000)
    restarts = ProcessRestarts(
        ReplicaDir(tmp_path / "replica"),
        ReplicaSpec(make_launch("p.json"), node),
        cast(ServerConnection, server),
        ExitStack(),
        Wakeup(),
        lambda: None,
        dict,
        lambda _: None,
    )
    assert restarts._restore_newest() is None
    assert (restarts.restored, server.fetched) == (None, [])

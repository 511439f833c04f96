"""A replica folder that was removed with its run or its home is not recreated by any concurrent write."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hopyard.api_client.client import Client
from hopyard.config.home import Home
from hopyard.domain.attempt import ReplicaPhase
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.replica import NodeContext, ReplicaSpec, ReplicaState, StopOrder
from hopyard.domain.resources import Resources
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.unstored_folders import UnstoredFolders
from hopyard.replica.uploads import upload_files
from hopyard.sdk import checkpoints
from hopyard.sdk.report_limit import ReportLimit
from hopyard.sdk.safe_points import SafePoints
from hopyard.sdk.streams import EventStream


def limit_reports(folder: ReplicaDir) -> None:
    descriptor = os.open(__file__, os.O_RDONLY)
    try:
        ReportLimit(100, folder.root / "reports").update(
            "events", __file__, descriptor, 1000, acknowledged=0, now=0.0, ended=True
        )
    finally:
        os.close(descriptor)


def leave_behind(folder: ReplicaDir) -> None:
    home = folder.root.parents[2]
    launch = ReplicaLaunch(
        RunId("r1"), "alice/p/1", AttemptId("r1.1"), 0, "worker", 0, 1, ("python",), Resources(), "", ""
    )
    UnstoredFolders(folder, ReplicaSpec(launch, NodeContext("box", str(home), "", 0))).retain(
        "a checkpoint", folder.work, OSError("no")
    )


WRITES: dict[str, Callable[[ReplicaDir], object]] = {
    "outputs": lambda folder: upload_files(
        Client("http://127.0.0.1:9", ""), folder.root, folder.work, {"made": "made"}, {}
    ),
    "status": lambda folder: folder.write_state(ReplicaState(ReplicaPhase.RUNNING, 1)),
    "token": lambda folder: folder.write_token("hopr_x"),
    "stop": lambda folder: folder.request_stop(StopOrder(1.0)),
    "study": lambda folder: folder.write_study({}, ""),
    "folders": lambda folder: folder.create(),
    "event": lambda folder: folder.append_json("events", kind="note"),
    "limited reports": limit_reports,
    "left behind": leave_behind,
    "a script's checkpoint": lambda folder: checkpoints.write_checkpoint(
        str(folder.checkpoints), 1, {}, [], {}
    ),
    "a script's stream": lambda folder: EventStream(str(folder.streams / "events")).append("note"),
    "a script's safe points": lambda folder: SafePoints(str(folder.root), str(folder.root), 0, 1),
}


@pytest.mark.parametrize("write", WRITES)
def test_removed_folder_is_not_recreated(tmp_path: Path, write: str) -> None:
    home = Home(tmp_path / "home")
    with suppress(OSError):
        WRITES[write](ReplicaDir(home.attempts / "r1.1" / "0"))
    assert not home.root.exists()

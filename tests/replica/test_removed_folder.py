"""A replica's folder that was removed, with its run or its whole home, is not made again, whatever is written
at that moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hopyard.config.home import Home
from hopyard.domain.attempt import ReplicaPhase
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.replica import NodeShare, ReplicaSpec, ReplicaState, StopOrder
from hopyard.domain.resources import Resources
from hopyard.replica.folder import Folder
from hopyard.replica.left_behind import LeftBehind
from hopyard.replica.outbox import push_files
from hopyard.sdk import checkpoints
from hopyard.sdk.client import Client
from hopyard.sdk.report_limit import ReportLimit
from hopyard.sdk.safepoint import SafePoints
from hopyard.sdk.streams import Events


def limit_reports(folder: Folder) -> None:
    descriptor = os.open(__file__, os.O_RDONLY)
    try:
        ReportLimit(100, folder.root / "reports").look(
            "events", __file__, descriptor, 1000, acknowledged=0, now=0.0, ended=True
        )
    finally:
        os.close(descriptor)


def leave_behind(folder: Folder) -> None:
    home = folder.root.parents[2]
    launch = ReplicaLaunch(
        RunId("r1"), "alice/p/1", AttemptId("r1.1"), 0, "worker", 0, 1, ("python",), Resources(), "", ""
    )
    LeftBehind(folder, ReplicaSpec(launch, NodeShare("box", str(home), "", 0))).keep(
        "a checkpoint", folder.work, OSError("no")
    )


WRITES: dict[str, Callable[[Folder], object]] = {
    "outputs": lambda folder: push_files(
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
    "a script's checkpoint": lambda folder: checkpoints.write(str(folder.checkpoints), 1, {}, [], {}),
    "a script's stream": lambda folder: Events(str(folder.streams / "events")).tell("note"),
    "a script's safe points": lambda folder: SafePoints(str(folder.root), str(folder.root), 0, 1),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_removed_folder_is_not_made_anew(tmp_path: Path, what: str) -> None:
    home = Home(tmp_path / "home")
    with suppress(OSError):
        WRITES[what](Folder(home.attempts / "r1.1" / "0"))
    assert not home.root.exists()

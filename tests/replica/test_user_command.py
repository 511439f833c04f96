"""The parameters that no process of a run has read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.param_format import ParamFormat, ParamStyle
from hopyard.domain.resources import Resources
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.user_command import READS_FILE, find_unread_params


@pytest.mark.parametrize(
    ("style", "kinds", "expected"),
    [
        (ParamStyle.ENV, ["python", "variable"], ["x"]),
        (ParamStyle.ENV, ["python", "variable", "copy"], []),  # the copy may have been read
        (ParamStyle.ARGS, ["python", "parser", "copy"], ["x"]),
        (ParamStyle.ARGS, ["python"], []),  # read without a known parser, or not at all
    ],
)
def test_parameters_are_unread_only_where_that_is_certain(
    style: ParamStyle, kinds: list[str], expected: list[str], tmp_path: Path
) -> None:
    lines = [{"by": kind, "read": ["lr"] if kind in ("variable", "parser") else []} for kind in kinds]
    (tmp_path / READS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    launch = ReplicaLaunch(
        RunId("r1"),
        "alice/p/1",
        AttemptId("r1.1"),
        0,
        "worker",
        0,
        1,
        ("python", "train.py"),
        Resources(),
        "",
        "",
        params={"lr": 0.1, "x": 2},
        param_format=ParamFormat(style, script="train.py"),
    )
    assert find_unread_params(launch, ReplicaDir(tmp_path)) == expected

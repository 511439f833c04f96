"""The parameters that no process of a run has read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.param_format import ParamFormat, ParamStyle, ScriptOption
from hopyard.domain.resources import Resources
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.user_command import READS_FILE, find_unread_params

ARGS = ParamFormat(ParamStyle.ARGS, "argparse in a.py", "a.py", {"lr": ScriptOption("--lr")})
SHELL = ParamFormat(ParamStyle.ENV, "variables of a.sh", "a.sh", {"lr": ScriptOption("LR")})
PYTHON = ParamFormat(ParamStyle.ENV, "os.environ in a.py", "a.py", {"lr": ScriptOption("LR")})


def launch_of(command: tuple[str, ...], form: ParamFormat | None) -> ReplicaLaunch:
    return ReplicaLaunch(
        attempt=AttemptId("a"), run=RunId("r"), run_name="u/p/1", rank=0, role="main", role_rank=0,
        world_size=1, command=command, resources=Resources(), server_url="", token="",
        params={"lr": 0.1, "x": 1}, param_format=form,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "form", "kinds", "unread"),
    [
        ("python a.py", ARGS, ["python", "parser"], ["lr", "x"]),
        ("python a.py", ARGS, ["python", "parser", "copy"], ["lr", "x"]),
        ("python a.py", ARGS, ["python"], []),  # read without a known parser, or not at all
        ("python a.py", ARGS, ["python", "other"], []),
        ("python chief.py", ARGS, ["python", "parser"], []),
        ("bash -c", None, ["python", "parser"], []),
        ("a.sh", SHELL, ["python"], ["x"]),
        ("python a.py", PYTHON, ["python"], ["lr", "x"]),
        ("python a.py", PYTHON, ["python", "copy"], []),  # the copy may have been read
        ("python a.py", ParamFormat(ParamStyle.ENV, "--params-as"), ["python", "copy"], []),
        ("python a.py", ParamFormat(ParamStyle.ENV, "--params-as"), ["python"], ["lr", "x"]),
    ],
)
def test_nothing_is_claimed_where_it_is_uncertain(
    words: str, form: ParamFormat | None, kinds: list[str], unread: list[str], tmp_path: Path
) -> None:
    command = (*words.split(), *(["python a.py --rate {lr} -x {x}"] if words.endswith("-c") else []))
    launch = launch_of(command, form)
    lines = [json.dumps({"by": kind, "read": []}) for kind in kinds]
    (tmp_path / READS_FILE).write_text("\n".join(lines))
    assert find_unread_params(launch, ReplicaDir(tmp_path)) == unread

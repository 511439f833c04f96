"""The parameters that no process of a run has read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.evaluation import EvaluationSpec
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


def test_evaluator_need_not_read_the_parameters_of_the_training(tmp_path: Path) -> None:
    (tmp_path / READS_FILE).write_text(json.dumps({"by": "python", "read": []}))
    launch = launch_of(("python", "eval.py"), None)
    assert find_unread_params(launch, ReplicaDir(tmp_path)) == ["lr", "x"]
    evaluator = replace(launch, evaluation=EvaluationSpec(RunId("other")))
    assert find_unread_params(evaluator, ReplicaDir(tmp_path)) == []


HOLDER: dict[str, Any] = {"by": "holder", "held": ["lr"], "process": 7}
LAUNCHER = {"by": "launcher", "process": 7, "read": []}
BY_HAND = ParamFormat(ParamStyle.ARGS, "--params-as")


@pytest.mark.parametrize(
    ("command", "form", "lines", "unread"),
    [
        ("python a.py", BY_HAND, [HOLDER], ["lr"]),
        ("python a.py --rate {lr}", None, [HOLDER], ["lr", "x"]),
        ("python a.py {lr}", None, [HOLDER], ["lr", "x"]),
        ("python a.py --rate {lr}", None, [], ["x"]),
        ("python a.py --rate {lr}", ParamFormat(), [], ["x"]),
        ("python a.py", BY_HAND, [HOLDER, {"by": "arguments", "read": []}], []),
        ("python a.py {lr}", None, [HOLDER, {"by": "arguments", "read": []}], ["x"]),
        ("python a.py {lr}", None, [HOLDER, {"by": "other", "read": []}], ["x"]),
        ("python a.py {lr}", None, [HOLDER, {"by": "parser", "read": []}], ["x"]),
        ("python -m launch a.py", BY_HAND, [HOLDER, LAUNCHER], []),
        ("python -m launch a.py", BY_HAND, [HOLDER, LAUNCHER, {**HOLDER, "process": 8}], ["lr"]),
        ("/opt/bin/torchrun a.py", BY_HAND, [HOLDER, LAUNCHER, {**HOLDER, "process": 8}], ["lr"]),
        ("bash a.sh", BY_HAND, [HOLDER], []),  # it may start other programs, too
        ("./program a.py", BY_HAND, [HOLDER], []),
        ("python a.py", ParamFormat(ParamStyle.HYDRA, "--params-as"), [HOLDER], ["lr"]),
    ],
)
def test_argument_is_unread_if_no_process_with_it_looks_at_its_arguments(
    command: str, form: ParamFormat | None, lines: list[dict[str, Any]], unread: list[str], tmp_path: Path
) -> None:
    records = [{"by": "python", "read": []}, *lines]
    (tmp_path / READS_FILE).write_text("\n".join(map(json.dumps, records)))
    assert find_unread_params(launch_of(tuple(command.split()), form), ReplicaDir(tmp_path)) == unread

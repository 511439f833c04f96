"""The form of the parameters of a command, and flags that a parameter would not clear."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.client.param_forms import fork_changes, with_param_format, with_trial_format
from hopyard.config.run_request import RoleRequest, RunRequest
from hopyard.config.search.search_file import search_from_mapping
from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption
from hopyard.errors import SpecError

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--amp", action="store_true")
parser.parse_known_args()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text(SCRIPT)
    (tmp_path / "torchrun").write_text("#!/usr/bin/env python\nfrom torch.distributed.run import main\n")
    return tmp_path


def request_of(*command: str, **params: float | bool) -> RunRequest:
    return RunRequest(roles=(RoleRequest(command),), project="p", params=params)


@pytest.mark.parametrize("program", [sys.executable, "./torchrun", "{folder}/torchrun", "python"])
def test_script_behind_any_program_is_found(folder: Path, program: str) -> None:
    request = request_of(program.format(folder=folder), "a.py", lr=1.0)
    form = with_param_format(request, folder, notify=lambda _text: None).param_format
    assert form is not None and form.source == "argparse in a.py"


def test_flag_that_stays_in_the_command_cannot_be_a_parameter(folder: Path) -> None:
    request = request_of("python", "a.py", "--amp", amp=False)
    with pytest.raises(SpecError, match="the command holds `--amp` as well"):
        with_param_format(request, folder, notify=lambda _text: None)
    options = {"amp": ScriptOption("--amp", OptionKind.FLAG)}
    form = ParamFormat(ParamStyle.ARGS, script="a.py", options=options)
    with pytest.raises(SpecError, match="the command holds `--amp` as well"):
        fork_changes([{"command": ["python", "a.py", "--amp"]}], form, {}, {"amp": False}, ())


@pytest.mark.parametrize(
    ("search", "refused"),
    [
        ({"arguments": ["--num-epochs", "3"], "epochs": 9}, True),
        ({"params": {"num_epochs": 3}, "epochs": 9}, True),
        ({"arguments": ["--num-epochs", "9"], "epochs": 9}, False),
        ({"arguments": ["--num-epochs", "3"]}, False),
    ],
)
def test_another_number_of_epochs_than_the_budget_is_refused(
    tmp_path: Path, search: dict[str, Any], refused: bool
) -> None:
    (tmp_path / "a.py").write_text(SCRIPT + 'parser.add_argument("--num-epochs", type=int)\n')
    mapping = {"metric": "loss", "space": {"lr": [0.1, 0.2]}, "script": "a.py", "trials": 2, **search}
    request = search_from_mapping(mapping, tmp_path)
    if refused:
        with pytest.raises(SpecError, match="`num_epochs` is 3 for all trials") as error:
            with_trial_format(request, tmp_path, notify=lambda _text: None)
        assert "`epochs: 3`" in error.value.hints[0]
        return
    trial = with_trial_format(request, tmp_path, notify=lambda _text: None).trial
    assert trial is not None and trial.params == {"num_epochs": 9 if "epochs" in search else 3}

"""The form of the parameters of a command, and flags that a parameter would not clear."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.api_client import types as api
from hopyard.client.command_line_study import build_command_line_study
from hopyard.client.param_forms import (
    BY_HAND,
    fork_changes,
    fork_form,
    fork_trial_form,
    with_param_format,
    with_trial_format,
)
from hopyard.config.run_request import RoleRequest, RunRequest
from hopyard.config.search.search_file import read_search_file, search_from_mapping
from hopyard.domain.param_format import OptionKind, ParamFormat, ParamStyle, ScriptOption, fill_command
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


@pytest.mark.parametrize(
    ("value", "refused"),
    [("fast", "`lr` is a float"), (True, "`lr` is a float"), ("1e-3", ""), (1, "")],
)
def test_value_of_another_type_than_the_default_is_refused(
    tmp_path: Path, value: str | float, refused: str
) -> None:
    (tmp_path / "a.py").write_text("import hopyard as hop\nimport b\np = hop.params(lr=0.1, depth=b.DEPTH)\n")
    (tmp_path / "b.py").write_text("DEPTH = 3\n")
    request = RunRequest(
        roles=(RoleRequest(("python", "a.py")),), project="p", params={"lr": value, "depth": "deep"}
    )
    if not refused:
        assert with_param_format(request, tmp_path, notify=lambda _text: None).params["lr"] == value
        return
    with pytest.raises(SpecError, match=refused) as error:
        with_param_format(request, tmp_path, notify=lambda _text: None)
    assert error.value.hints == ("its default is 0.1",)


def test_type_of_a_parameter_with_two_defaults_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import hopyard as hop\nif small:\n    hop.params(size=1)\nelse:\n    hop.params(size='large')\n"
    )
    request = RunRequest(roles=(RoleRequest(("python", "a.py")),), project="p", params={"size": "x"})
    assert with_param_format(request, tmp_path, notify=lambda _text: None).params == {"size": "x"}


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
        ({"arguments": ["--num-epochs", "3"], "epochs": 1}, True),
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


def test_hydra_study_gives_the_number_of_epochs_under_the_name_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(
        "import hydra\n@hydra.main(config_path='.', config_name='c')\ndef main(c): ...\n"
    )
    for settings, name in (
        ("epochs: 1\n", "epochs"),
        ("num_epochs: 1\n", "num_epochs"),
        ("trainer:\n  max_epochs: 1\n", "trainer.max_epochs"),
        ("a:\n  epochs: 1\nb:\n  epochs: 1\n", ""),
        ("lr: 1\n", ""),
    ):
        (tmp_path / "c.yaml").write_text(settings)
        (tmp_path / "study.yaml").write_text(
            "script: s.py\nmetric: loss\nmode: min\nsearcher: random\ntrials: 2\n"
            "epochs: 3\nspace: {lr: [1, 2]}\n"
        )
        study = read_search_file(tmp_path / "study.yaml", tmp_path)
        request = with_trial_format(study, tmp_path, notify=lambda _text: None)
        assert request.trial is not None and request.trial.param_format is not None
        taken = request.trial.param_format.takes(request.study.budget_param)
        assert (request.study.budget_param if taken else "") == name


def test_function_takes_the_parameters_of_its_study(tmp_path: Path) -> None:
    (tmp_path / "o.py").write_text("def plain(lr): return lr\n")
    command = ["python", "-u", "-m", "hopyard.sdk.objective", "o.py:plain", "loss"]
    mapping = {"metric": "loss", "space": {"lr": [0.1, 0.2]}, "command": command, "trials": 2, "epochs": 3}
    lines: list[str] = []
    request = with_trial_format(search_from_mapping(mapping, tmp_path), tmp_path, notify=lines.append)
    assert lines == [] and request.study.budget_param == "epochs"
    assert request.trial is not None and request.trial.roles[0].command == tuple(command)


def test_marks_of_new_keys_are_for_hydra_only(tmp_path: Path) -> None:
    form = ParamFormat(ParamStyle.HYDRA, script="s.py", default=OptionKind.JOINED)
    changed = fork_changes([{"command": ["python", "s.py"]}], form, {"lr": 1}, {"+new": 2, "lr": 3}, ())
    assert changed.params == {"new": 2, "lr": 3} and changed.form is not None
    words = fill_command(["python", "s.py"], changed.params, changed.form).words
    assert words == ("python", "s.py", "+new=2", "lr=3")
    with pytest.raises(SpecError, match=r"-p \+new: only Hydra adds keys"):
        fork_changes([{"command": ["python", "s.py"]}], ParamFormat(), {}, {"+new": 2}, ())
    with pytest.raises(SpecError, match="`lr` is given twice"):
        fork_changes([{"command": ["python", "s.py"]}], form, {}, {"lr": 1, "+lr": 2}, ())


def test_fork_with_other_code_has_its_form(folder: Path) -> None:
    roles: list[api.RoleIn] = [{"command": ["python", "a.py"]}]
    notes: list[str] = []
    old = ParamFormat(ParamStyle.ENV, "os.environ in a.py", "a.py")
    form = fork_form(roles, old, ["lr"], folder, notify=notes.append)
    assert form.style is ParamStyle.ARGS and form.script == "a.py"
    assert notes == ["parameters are given as arguments (argparse in a.py)"]
    chosen = ParamFormat(ParamStyle.JSON, BY_HAND)
    assert fork_form(roles, chosen, ["lr"], folder, notify=notes.append) is chosen
    (folder / "a.py").write_text(SCRIPT.replace("known_", "").replace("--lr", "--rate"))
    with pytest.raises(SpecError, match=r"the parameter lr: a\.py has no such option"):
        fork_form(roles, old, ["lr"], folder, notify=notes.append)


def test_new_arguments_of_new_code_are_judged_by_the_new_code(folder: Path) -> None:
    (folder / "a.py").write_text(SCRIPT.replace("known_", "").replace("--lr", "--rate"))
    roles: list[api.RoleIn] = [{"command": ["python", "a.py", "--lr", "{lr}"]}]
    old = ParamFormat(
        ParamStyle.ARGS, "argparse in a.py", "a.py", {"lr": ScriptOption("--lr")}, complete=True
    )
    arguments = ["--rate", "3"]
    form = fork_form(roles, old, ["lr", "amp"], folder, notify=lambda _text: None, arguments=arguments)
    changes = fork_changes(roles, form, {"lr": 1.0, "amp": True}, {}, arguments)
    assert (changes.params, changes.removed) == ({"rate": 3}, ("lr", "amp"))
    assert changes.roles == [{"command": ["python", "a.py", "--rate", "{rate}"]}]
    with pytest.raises(SpecError, match=r"-p lr: a\.py has no such option"):
        fork_changes(roles, form, {"lr": 1.0}, {"lr": 2.0}, arguments)


def test_trials_with_new_code_take_their_parameters_as_its_script_does(folder: Path) -> None:
    budget = {"epochs": {"word": "", "kind": "omitted"}}
    stored = {"style": "env", "source": "os.environ in a.py", "script": "a.py", "options": budget}
    study = {
        "space": [{"name": "lr"}, {"name": "epochs"}],
        "trial": {"roles": [{"command": ["python", "a.py"]}], "param_format": stored},
    }
    (folder / "a.py").write_text(SCRIPT.replace("known_", ""))
    form = fork_trial_form(study, folder, notify=lambda _text: None)
    assert form is not None and form.style is ParamStyle.ARGS
    assert fill_command(["python", "a.py"], {"lr": 1, "epochs": 3}, form).words[2:] == ("--lr", "1")
    assert fork_trial_form({"space": [], "trial": None}, folder, notify=lambda _text: None) is None


def test_search_over_a_key_that_hydra_adds(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import hydra\n@hydra.main()\ndef main(c): ...\n")
    options = {"metric": "loss", "trials": 2, "params": ("+new=1..3", "lr=0.5")}
    request = build_command_line_study("s.py", (), tmp_path, options, notify=lambda _text: None)
    assert [each.name for each in request.study.space.parameters] == ["new", "lr"]
    trial = with_trial_format(request, tmp_path, notify=lambda _text: None).trial
    assert trial is not None
    words = fill_command(trial.roles[0].command, {"new": 2, "lr": 0.5}, trial.param_format).words
    assert words[-2:] == ("+new=2", "lr=0.5")
    (tmp_path / "s.py").write_text(SCRIPT)
    with pytest.raises(SpecError, match=r"-p \+new: only Hydra adds keys"):
        with_trial_format(request, tmp_path, notify=lambda _text: None)
    with pytest.raises(SpecError, match="`new` is there as well"):
        search_from_mapping({"metric": "a", "space": {"new": [1], "+new": [2]}, "script": "s.py"}, tmp_path)

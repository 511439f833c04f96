"""Parameters and arguments of argparse scripts, parsed by the real argparse."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from hopyard.client.build_run import build_request
from hopyard.client.command_line_study import build_command_line_study
from hopyard.client.param_forms import fork_changes, with_param_format, with_trial_format
from hopyard.config.run_request import RunRequest
from hopyard.domain.param_format import fill_command
from hopyard.domain.space import Choice, Constant, Integer
from hopyard.errors import SpecError

MANY = """
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--flag", action="store_true")
p.add_argument("--layers", type=int, nargs="+")
p.add_argument("pos", nargs="*")
"""
TEXTS = """
p.add_argument("--name", default="x")
p.add_argument("--mode", type=str)
p.add_argument("--n", type=int, default=1)
p.add_argument("--amp", type=lambda text: text == "True")
p.add_argument("--tag", action="append")
p.add_argument("-v", "--verbose", action="count", default=0)
p.add_argument("--const", action="store_const", const=5)
"""
REST = """
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--betas", type=float, nargs=2)
p.add_argument("opts", nargs=argparse.REMAINDER)
"""
OPTION_REST = """
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--betas", type=float, nargs=2)
p.add_argument("--opts", nargs=argparse.REMAINDER)
"""
LISTS = """
p.add_argument("--layers", type=int, nargs="*")
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("script")
p.add_argument("opts", nargs=argparse.REMAINDER)
"""
OPTION_LISTS = """
p.add_argument("--layers", type=int, nargs="+")
p.add_argument("files", nargs="*")
p.add_argument("--opts", nargs=argparse.REMAINDER)
"""
BETAS = """
p.add_argument("--betas", type=float, nargs=2)
p.add_argument("--amp", action="store_true")
p.add_argument("file")
"""
COMMANDS = """
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--fast", action="store_true")
commands = p.add_subparsers(dest="cmd", required=True)
for name in ("train", "eval"):
    q = commands.add_parser(name)
    q.add_argument("--epochs", type=int, default=1)
    g = q.add_argument_group("more")
    g.add_argument("--deep", action="store_true")
"""
FUNCTION = """
def add_options(p):
    p.add_argument("--lr", type=float, default=0.1)
commands = p.add_subparsers(dest="cmd", required=True)
add_options(commands.add_parser("train"))
"""


def requested(folder: Path, lines: str, params: list[str], arguments: str) -> RunRequest:
    script = f"import argparse\np = argparse.ArgumentParser()\n{lines}\nargs = p.parse_args()\n"
    (folder / "s.py").write_text(script)
    request = build_request("s.py", tuple(arguments.split()), folder, {"params": params})
    return with_param_format(request, folder, notify=lambda _text: None)


def parsed(lines: str, command: tuple[str, ...]) -> dict[str, Any]:
    scope: dict[str, Any] = {"p": argparse.ArgumentParser(exit_on_error=False), "argparse": argparse}
    exec(lines, scope)
    return vars(scope["p"].parse_args(command[command.index("s.py") + 1 :]))


@pytest.mark.parametrize(
    ("lines", "params", "arguments", "expected"),
    [
        (MANY, [], "--flag x -- -z", {"flag": True, "pos": ["x", "-z"]}),
        (MANY, ["lr=0.4", "layers=1,2"], "x -- -z", {"lr": 0.4, "layers": [1, 2], "pos": ["x", "-z"]}),
        (MANY, [], "--layers 1 2 --flag x", {"layers": [1, 2], "flag": True, "pos": ["x"]}),
        (MANY, ["layers=1,2"], "--lr 2 x", {"lr": 2, "layers": [1, 2], "pos": ["x"]}),
        (MANY, ["layers=1,2", "pos=x"], "", {"layers": [1, 2], "pos": ["x"]}),
        (TEXTS, ["name=3.10", "mode=true"], "", {"name": "3.10", "mode": "true"}),
        (TEXTS, ["name=12345e7", "mode=None", "n=+5"], "", {"name": "12345e7", "mode": "None", "n": 5}),
        (TEXTS, ["name=0.5", "mode=True", "amp=true"], "", {"name": "0.5", "mode": "True", "amp": True}),
        (TEXTS, ["tag=a,b", "v=2", "const=true"], "", {"tag": ["a", "b"], "verbose": 2, "const": 5}),
        (TEXTS, ["v=true"], "", {"verbose": 1}),
        (TEXTS, ["n=3"], "--name {{n}}", {"name": "{n}", "n": 3}),
        (REST, ["lr=2"], "a.py --lr 5", {"lr": 2, "opts": ["a.py", "--lr", "5"]}),
        (REST, [], "--betas 1 2 3 --lr 5", {"betas": [1, 2], "lr": 0.1, "opts": ["3", "--lr", "5"]}),
        (REST, ["betas=1,2", "opts=a 3"], "", {"betas": [1, 2], "opts": ["a", "3"]}),
        (REST, ["betas=1,2"], "a.py 3", {"betas": [1, 2], "opts": ["a.py", "3"]}),
        (LISTS, ["layers=5"], "a.py --x 1", {"layers": [5], "script": "a.py", "opts": ["--x", "1"]}),
        (LISTS, ["layers=5,6"], "a.py --x 1", {"layers": [5, 6], "script": "a.py", "opts": ["--x", "1"]}),
        (LISTS, ["layers=5,6"], "--lr 1 a.py", {"layers": [5, 6], "lr": 1, "script": "a.py"}),
        (LISTS, ["layers=5,6", "lr=1"], "a.py", {"layers": [5, 6], "lr": 1, "script": "a.py"}),
        (LISTS, ["layers=5,6", "script=a.py"], "", {"layers": [5, 6], "script": "a.py", "opts": []}),
        (LISTS, ["layers=5", "script=a.py", "opts=3"], "", {"layers": [5], "script": "a.py", "opts": ["3"]}),
        (
            OPTION_LISTS,
            ["layers=5,6"],
            "a.txt --opts b 1",
            {"layers": [5, 6], "files": ["a.txt"], "opts": ["b", "1"]},
        ),
        (BETAS, [], "--betas 1 2 x", {"betas": [1, 2], "file": "x"}),
        (BETAS, ["betas=1,2", "file=x"], "", {"betas": [1, 2], "file": "x"}),
        (OPTION_REST, ["lr=2"], "--betas 1 2 --opts --lr 5", {"lr": 2, "opts": ["--lr", "5"]}),
        (COMMANDS, ["epochs=3", "lr=0.5"], "train", {"epochs": 3, "lr": 0.5, "cmd": "train"}),
        (FUNCTION, ["lr=0.5"], "train", {"lr": 0.5, "cmd": "train"}),
        (COMMANDS, ["deep=true", "cmd=eval", "fast=true"], "", {"deep": True, "fast": True, "cmd": "eval"}),
    ],
)
def test_script_gets_each_parameter(
    tmp_path: Path, lines: str, params: list[str], arguments: str, expected: dict[str, Any]
) -> None:
    request = requested(tmp_path, lines, params, arguments)
    command = fill_command(request.roles[0].command, request.params, request.param_format).words
    found = parsed(lines, command)
    assert {name: found[name] for name in expected} == expected


def test_launcher_gives_way_to_the_script_that_it_starts(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n"
    )
    request = requested(tmp_path, REST, ["lr=0.5"], "main.py")
    command = fill_command(request.roles[0].command, request.params, request.param_format).words
    assert command[-3:] == ("main.py", "--lr", "0.5")


def test_option_that_the_command_holds_cannot_be_added_again(tmp_path: Path) -> None:
    request = requested(tmp_path, TEXTS, [], "--tag a --tag b")
    roles = [{"command": list(request.roles[0].command)}]
    with pytest.raises(SpecError, match="the command holds `--tag` as well"):
        fork_changes(roles, request.param_format, {}, {"tag": "c"}, ())


@pytest.mark.parametrize(
    ("arguments", "params", "words"),
    [
        ("--betas 1 2 x", {"betas": "1 2"}, "--betas {betas} x"),
        ("--betas 1 2 --amp x", {"betas": "1 2", "amp": True}, "--betas {betas} x"),
        ("--betas 1 --amp x", {"betas": "1"}, "--betas {betas} --amp x"),
    ],
)
def test_list_of_fixed_length_takes_no_further_word(
    tmp_path: Path, arguments: str, params: dict[str, Any], words: str
) -> None:
    request = requested(tmp_path, BETAS, [], arguments)
    assert request.params == params
    assert " ".join(request.roles[0].command).endswith(f"s.py {words}")


@pytest.mark.parametrize(
    ("lines", "rest"), [(MANY, "x"), (REST, "a.py"), (REST, "--betas 1 2 a.py --lr 5"), (COMMANDS, "train")]
)
def test_fork_changes_an_argument(tmp_path: Path, lines: str, rest: str) -> None:
    request = requested(tmp_path, lines, [], f"--lr 0.1 {rest}")
    roles = [{"command": list(request.roles[0].command)}]
    changed = fork_changes(roles, request.param_format, request.params, {"lr": 0.2}, ())
    assert changed.params == {"lr": 0.2}


@pytest.mark.parametrize(
    ("lines", "arguments", "params"),
    [
        (TEXTS, "--tag=a", {"tag": "b,c"}),
        (LISTS, "--layers 1 2 --lr 5 a.py", {"lr": 0.2}),
    ],
)
def test_fork_never_gives_an_option_twice(
    tmp_path: Path, lines: str, arguments: str, params: dict[str, Any]
) -> None:
    request = requested(tmp_path, lines, [], arguments)
    roles = [{"command": list(request.roles[0].command)}]
    with pytest.raises(SpecError, match="the command holds"):
        fork_changes(roles, request.param_format, request.params, params, ())


def test_new_arguments_of_a_fork_keep_a_flag_that_ends_a_list(tmp_path: Path) -> None:
    request = requested(tmp_path, MANY, [], "x")
    roles = [{"command": list(request.roles[0].command)}]
    words = ["--layers", "1", "--flag", "x"]
    changed = fork_changes(roles, request.param_format, {}, {"lr": 0.2}, words)
    assert changed.params == {"lr": 0.2, "layers": "1"}
    with pytest.raises(SpecError, match="the command holds `--flag`"):
        fork_changes(roles, request.param_format, {}, {"flag": False}, words)


def test_fork_keeps_texts_as_typed(tmp_path: Path) -> None:
    request = requested(tmp_path, TEXTS, ["mode=a"], "")
    roles = [{"command": list(request.roles[0].command)}]
    new, texts = {"mode": 3.1, "n": 7}, {"mode": "3.10", "n": "7"}
    changed = fork_changes(roles, request.param_format, request.params, new, (), texts=texts)
    assert changed.params == {"mode": "3.10", "n": 7}


def test_two_names_of_one_option_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="-p v: `verbose` is the same option"):
        requested(tmp_path, TEXTS, ["verbose=1", "v=2"], "")


def test_place_in_a_command_gets_the_text_as_typed(tmp_path: Path) -> None:
    options = {"params": ["version=3.10", "amp=true", "lr=1e-3"]}
    request = build_request("bash", ("-c", "run {version} {amp} {lr}"), tmp_path, options)
    request = with_param_format(request, tmp_path, notify=lambda _text: None)
    assert request.params == {"version": "3.10", "amp": "true", "lr": 0.001}


def test_values_of_a_search_are_as_typed(tmp_path: Path) -> None:
    requested(tmp_path, TEXTS, [], "")
    params = ["name=3.10,true,0.5", "mode=false", "n=1..3", "amp=true,false"]
    options = {"params": params, "metric": "loss", "mode": "min", "trials": 4}
    study = build_command_line_study("s.py", (), tmp_path, options, notify=lambda _text: None)
    space = with_trial_format(study, tmp_path, notify=lambda _text: None).study.space
    assert [parameter.domain for parameter in space.parameters] == [
        Choice(("3.10", "true", 0.5)),
        Constant("false"),
        Integer(1, 3),
        Choice((True, False)),
    ]

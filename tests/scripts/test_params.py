"""Parameters of scripts that do not import `hopyard`: run, killed, resumed, forked, compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.scripts.attempts import METRIC_LINE, changed_params, check_attempts, check_board, printed

MODEL = {"batch_size": 64, "layers": [1], "lr": 0.1, "no_cuda": False}
# the words of `hop run`, the values that the script prints, and the form that the submission states
CASES: list[tuple[str, dict[str, Any], str]] = [
    (
        "-p lr=0.5 -p batch-size=8 argparse_train.py",
        {**MODEL, "lr": 0.5, "batch_size": 8},
        "arguments (argparse in argparse_train.py)",
    ),
    (
        "argparse_train.py -- --lr 5e-1 --no-cuda --layers 2 3",
        {**MODEL, "lr": 0.5, "no_cuda": True, "layers": [2, 3]},
        "argparse in",
    ),
    (
        "-p lr=0.5 -p size=4 python -- launch.py --nproc 1 argparse_train.py -b {size}",
        {**MODEL, "lr": 0.5, "batch_size": 4},
        "argparse in argparse_train.py",
    ),
    ("-p lr=0.5 -m package.train -- --x", {"lr": 0.5, "others": 1}, "argparse in package/train.py"),
    ("-p lr=0.5 ./train.sh", {**MODEL, "lr": 0.5}, "argparse in argparse_train.py"),
    (
        "-p lr=0.5 -p run_name=a variables.py",
        {"lr": 0.5, "name": "a"},
        "environment variables (os.environ in variables.py)",
    ),
    (
        "-p lr=0.5 -p model.dim=16 --params-as file:config.json config_file.py",
        {"lr": 0.5, "model": {"dim": 16}},
        "values of the file (config.json)",
    ),
    (
        "-p lr=0.5 -p layers=2,3 -p batch-size=8 -p shuffle=false hf_train.py",
        {"amp": False, "batch_size": 8, "layers": [2, 3], "lr": 0.5, "name": None, "shuffle": False},
        "arguments (HfArgumentParser in hf_train.py)",
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_each_attempt_gets_the_params_and_a_fork_changes_them(scripts: Shell, case: int) -> None:
    words, values, form = CASES[case]
    scripts.write("data/rows.txt", words)
    dataset = f"params-{case}"
    assert scripts.hop("dataset", "push", dataset, "data").code == 0
    first = check_attempts(scripts, words, values, ("-d", dataset, *METRIC_LINE))
    assert form in first.stderr_text
    fork = scripts.hop("fork", "last", "-p", "lr=0.25")
    assert fork.code == 0, fork.stderr_text
    assert printed(fork) == ({**values, "lr": 0.25}, "begins at 0")
    assert changed_params(scripts, fork) == {"lr": [0.5, 0.25]}
    check_board(scripts, dataset, 0.5, 0.25)


def test_command_shows_what_runs_and_new_arguments_replace_the_old(scripts: Shell) -> None:
    scripts.hop("run", "-n", "one", "argparse_train.py", "--", "--lr", "0.1", "-b", "8")
    fork = scripts.hop("fork", "one", "-n", "two", "-p", "lr=0.5")
    assert printed(fork)[0] == {**MODEL, "lr": 0.5, "batch_size": 8}
    shown = scripts.hop("info", "two").text
    assert "argparse_train.py --lr 0.5 -b 8" in shown and "lr = 0.5" in shown
    difference = scripts.hop("diff", "one", "two").text
    assert "lr" in difference and "command" not in difference
    other = scripts.hop("fork", "two", "--", "--layers", "7", "--no-cuda")
    assert printed(other)[0] == {**MODEL, "layers": [7], "no_cuda": True}
    assert scripts.hop("info", "last", "--json").json["params"] == {"layers": "7", "no_cuda": True}


def test_param_without_effect_is_named(scripts: Shell) -> None:
    refused = scripts.hop("run", "-p", "lrr=1", "plain.py")
    assert refused.code == 0 and "nothing in the script takes lrr" in refused.stderr_text
    assert "nothing has read lrr" in refused.stderr_text
    assert scripts.hop("info", "last", "--json").json["unread_params"] == ["lrr"]
    taken = scripts.hop("run", "-p", "lr=1", "-p", "lrr=2", "python", "--", "-m", "package.train")
    assert "nothing has read" not in taken.stderr_text and '"others": 2' in taken.text


def test_argument_that_the_script_never_looks_at_is_named(scripts: Shell) -> None:
    run = scripts.hop("run", "-p", "seed=3", "--params-as", "args", "plain.py")
    assert run.code == 0 and "nothing has read seed" in run.stderr_text
    options = ["--searcher", "grid", "--metric", "loss", "-p", "lr=0.3,0.4"]
    study = scripts.hop("search", *options, "fixed_list.py")
    assert study.code != 0 and "no process of the trial has read it" in study.stderr_text
    assert "let `fixed_list.py` read its arguments: `parser.parse_args()`" in study.stderr_text


def test_unknown_and_doubled_params_are_refused(scripts: Shell) -> None:
    close = scripts.hop("run", "-p", "batchsize=1", "argparse_train.py")
    assert close.code != 0 and "did you mean `batch_size`?" in close.stderr_text
    doubled = scripts.hop("run", "-p", "lr=1", "argparse_train.py", "--", "--lr", "2")
    assert doubled.code != 0 and "the arguments after `--` set `lr`" in doubled.stderr_text
    template = scripts.hop("run", "argparse_train.py", "--", "--lr", "{lr}")
    assert template.code != 0 and "`{lr}` names no parameter" in template.stderr_text


def test_script_with_a_parser_and_metrics_of_the_sdk_is_not_warned(scripts: Shell) -> None:
    run = scripts.hop("run", "-p", "lr=0.5", "logging_train.py")
    assert (run.code, run.text) == (0, "0.5\n")
    assert "hop.params" not in run.stderr_text and "nothing has read" not in run.stderr_text


def test_fork_with_other_code_gives_the_params_as_the_new_script_takes_them(scripts: Shell) -> None:
    first = scripts.hop("run", "-p", "lr=0.5", "variables.py")
    assert printed(first)[0] == {"lr": 0.5, "name": "none"}
    newer = scripts.folder / "newer"
    newer.mkdir()
    for name in ("argparse_train.py", "options.py", "epochs.py"):
        (scripts.folder / name).rename(newer / name)
    (newer / "argparse_train.py").rename(newer / "variables.py")
    fork = scripts.hop("fork", "last", "--code", "newer", "-p", "batch-size=8")
    assert "arguments (argparse in variables.py)" in fork.stderr_text
    assert printed(fork)[0] == {"batch_size": 8, "layers": [1], "lr": 0.5, "no_cuda": False}
    refused = scripts.hop("fork", "last", "--code", "newer", "-p", "lrr=8")
    assert refused.code != 0 and "did you mean `lr`?" in refused.stderr_text

"""Scripts with the parsers of other libraries: run with `-p`, killed, resumed, forked, compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.scripts.attempts import changed_params, check_attempts, printed

HYDRA = {"epochs": 3, "optim": {"lr": 0.1, "name": "sgd"}, "total": 0.1}
# the words of `hop run`, the values that the script prints, and the words of a fork with its changes
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "click": (
        "-p lr=0.5 -p batch_size=8 -p amp=false click_train.py",
        {"amp": False, "lr": 0.5, "size": 8},
        "-p lr=0.25 -p amp=true",
        {"amp": True, "lr": 0.25},
    ),
    "typer": (
        "-p lr=0.5 -p model=cnn -p batch_size=8 -p amp=false typer_train.py",
        {"amp": False, "lr": 0.5, "model": "cnn", "size": 8},
        "-p size=16",
        {"size": 16},
    ),
    "hydra": (
        "-p optim.lr=0.5 -p +new=1 -p optim.name='a,b' hydra_train.py",
        {**HYDRA, "optim": {"lr": 0.5, "name": "a,b"}, "total": 0.5, "new": 1},
        "-p new=2 -p ++other=x -p optim=adam",
        {"new": 2, "other": "x"},
    ),
    "hydra arguments": (
        "hydra_train.py -- optim=adam +new=1 ~epochs ++optim.lr=1e-2",
        {"new": 1, "optim": {"lr": 0.01, "name": "adam"}, "total": 0.01},
        "-p optim=sgd -p new=2",
        {"new": 2, "optim": {"lr": 0.01, "name": "sgd"}},
    ),
    "omegaconf": (
        "-p lr=0.5 -p model.dim=16 omegaconf_train.py",
        {"lr": 0.5, "model": {"dim": 16}},
        "-p model.dim=4",
        {"model": {"dim": 4}},
    ),
    "fire": (
        "-p lr=0.5 -p layers=2,3 -p name='x' fire_train.py",
        {"layers": [2, 3], "lr": 0.5, "name": "x"},
        "-p layers=[4]",
        {"layers": [4]},
    ),
    "absl": (
        "-p lr=0.5 -p batch_size=8 -p amp=true absl_train.py",
        {"amp": True, "batch_size": 8, "lr": 0.5},
        "-p amp=false",
        {"amp": False},
    ),
    "tyro": (
        "-p optim.lr=0.5 -p layers=2,3 -p amp=true tyro_train.py",
        {"amp": True, "layers": [2, 3], "optim": {"lr": 0.5, "name": "sgd"}},
        "-p optim.name=adam",
        {"optim": {"lr": 0.5, "name": "adam"}},
    ),
    "jsonargparse": (
        "jsonargparse_train.py -- --model.lr=0.5 --seed=3",
        {"model": {"dim": 8, "lr": 0.5}, "seed": 3},
        "-p model.lr=0.25",
        {"model": {"dim": 8, "lr": 0.25}},
    ),
    "words that argparse leaves": (
        "-p lr=0.5 -p dim=16 known_args.py",
        {"dim": 16, "lr": 0.5},
        "-p dim=4",
        {"dim": 4},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_parser_of_the_library_gets_the_params_in_each_attempt(scripts: Shell, name: str) -> None:
    words, values, changes, changed = CASES[name]
    check_attempts(scripts, words, values)
    fork = scripts.hop("fork", "last", *changes.split())
    assert fork.code == 0, fork.stderr_text
    assert printed(fork) == ({**values, **changed}, "begins at 0")
    assert "nothing has read" not in fork.stderr_text
    names = {word.partition("=")[0].lstrip("+") for word in changes.split() if "=" in word}
    # `size` is the variable of the option --batch-size, by which the parent names it
    expected = {"batch_size" if each == "size" else each for each in names}
    assert set(changed_params(scripts, fork)) == expected

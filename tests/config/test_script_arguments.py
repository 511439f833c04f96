"""Arguments after `--` as parameters."""

from __future__ import annotations

import pytest

from hopyard.config.script_arguments import split_arguments
from hopyard.domain.param_format import (
    OptionKind,
    ParamFormat,
    ParamStyle,
    ParamValue,
    ScriptOption,
    fill_command,
)

OPTIONS = {
    "lr": ScriptOption("--lr", numeric=True, aliases=("-l",)),
    "name": ScriptOption("--name"),
    "cuda": ScriptOption("", OptionKind.FLAG, "--no-cuda"),
    "layers": ScriptOption("--layers", OptionKind.LIST),
}
ARGS = ParamFormat(ParamStyle.ARGS, script="a.py", options=OPTIONS, complete=True)
OPEN = ParamFormat(ParamStyle.ARGS, script="a.py")
HYDRA = ParamFormat(ParamStyle.HYDRA, script="a.py", default=OptionKind.JOINED)


@pytest.mark.parametrize(
    ("text", "form", "words", "params"),
    [
        ("--lr 1e-3 data", ARGS, "--lr {lr} data", {"lr": 0.001}),
        ("--name 1e5", ARGS, "--name {name}", {"name": "1e5"}),
        ("-l 3 --name=3.10", ARGS, "-l {lr} --name={name}", {"lr": 3, "name": "3.10"}),
        ("--name 007 --no-cuda", ARGS, "--name {name}", {"name": "007", "cuda": False}),
        ("--layers 1 2 --lr -0.5", ARGS, "--layers {layers} --lr {lr}", {"layers": "1 2", "lr": -0.5}),
        ("--lr 1 --lr 2", ARGS, "--lr 1 --lr 2", {}),
        ("--other 1 -- --lr 2", ARGS, "--other 1 -- --lr 2", {}),
        ("--lr {lr}", ARGS, "--lr {lr}", {}),
        ("--x-y 1 --flag --z=true", OPEN, "--x-y {x_y} --flag --z={z}", {"x_y": 1, "z": "true"}),
        ("+a.b=1 opt/sgd=x ~c m=true", HYDRA, "+a.b={a.b} opt/sgd=x ~c m={m}", {"a.b": 1, "m": True}),
        ("-m lr=1,2", HYDRA, "-m lr=1,2", {}),
    ],
)
def test_arguments_become_params_and_the_command_stays_the_same(
    text: str, form: ParamFormat, words: str, params: dict[str, ParamValue]
) -> None:
    split = split_arguments(text.split(), form)
    assert (" ".join(split.words), split.params) == (words, params)
    filled = fill_command(("a.py", *split.words), split.params, form).words[1:]
    as_typed = text.replace("1e-3", "0.001").replace("--lr -0.5", "--lr -0.5").split()
    assert sorted(filled) == sorted(as_typed)

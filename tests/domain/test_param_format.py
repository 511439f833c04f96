"""Parameters in the command of a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.domain.param_format import (
    OptionKind,
    OptionPlace,
    ParamFormat,
    ParamStyle,
    ScriptOption,
    fill_command,
    names_of_sentence,
    option_words,
    param_format_from_json,
    unread_names,
    unread_sentence,
)

OPTIONS = {
    "lr": ScriptOption("--lr", numeric=True),
    "batch_size": ScriptOption("--batch-size"),
    "no_cuda": ScriptOption("--no-cuda", OptionKind.FLAG),
    "amp": ScriptOption("--amp", OptionKind.FLAG, "--no-amp"),
    "layers": ScriptOption("--layers", OptionKind.LIST),
    "data": ScriptOption("data", OptionKind.POSITIONAL),
}
ARGS = ParamFormat(ParamStyle.ARGS, "argparse in a.py", "a.py", OPTIONS, complete=True)
COMMAND = ("python", "a.py")


def filled(params: dict[str, str | int | float | bool | None], form: ParamFormat | None = ARGS) -> list[str]:
    return list(fill_command(COMMAND, params, form).words[2:])


def test_options_are_spelled_as_the_script_declares_them() -> None:
    assert filled({"data": "d", "lr": 0.1, "batch-size": 8}) == ["--lr", "0.1", "--batch-size", "8", "d"]
    assert filled({"no_cuda": True, "amp": False, "layers": "[64, 32]"}) == [
        "--no-cuda",
        "--no-amp",
        "--layers",
        "64",
        "32",
    ]
    assert filled({"no_cuda": False, "amp": True, "lr": -0.5}) == ["--amp", "--lr=-0.5"]
    assert filled({"other": "x"}) == [], "argparse would refuse it"
    assert filled({"other": "x"}, replace(ARGS, complete=False)) == ["--other", "x"]


def test_hydra_json_variables_and_the_sdk() -> None:
    hydra = ParamFormat(ParamStyle.HYDRA, default=OptionKind.JOINED)
    assert filled({"model.dim": 3, "amp": True, "x": None}, hydra) == ["model.dim=3", "amp=true", "x=null"]
    assert filled({"lr": 0.1}, ParamFormat(ParamStyle.JSON)) == ['{"lr": 0.1}']
    form = ParamFormat(ParamStyle.ENV, options={"lr": ScriptOption("LR")})
    command = fill_command(COMMAND, {"lr": 0.1, "a.b": 2}, form)
    assert (command.words, command.variables) == (COMMAND, {"LR": "0.1", "a_b": "2"})
    assert fill_command(COMMAND, {"lr": 0.1}, None).given == {}


def test_command_that_names_a_parameter_gets_it_once() -> None:
    command = fill_command((*COMMAND, "--lr={lr}", "--layers", "{layers}"), {"lr": 1, "layers": "2 3"}, ARGS)
    assert command.words[2:] == ("--lr=1", "--layers", "2", "3")
    assert fill_command(("bash", "b.sh"), {"lr": 1}, ARGS).given == {}, "another script takes nothing"


def test_unread_names_survive_the_sentence() -> None:
    assert unread_names(["lr", "batch-size", "x"], {"batch_size"}) == ["lr", "x"]
    assert names_of_sentence(unread_sentence(["lr", "x"])) == ["lr", "x"]


@pytest.mark.parametrize(
    ("value", "words"), [(0, []), (2, ["-v", "-v"]), (-1, ["-v=-1"]), (10**12, [f"-v={10**12}"])]
)
def test_count_that_no_script_has_is_left_to_its_parser(value: int, words: list[str]) -> None:
    assert option_words(ScriptOption("-v", OptionKind.COUNT), value) == words


@pytest.mark.parametrize("place", [OptionPlace.FIRST, OptionPlace.ANY])
def test_flag_that_is_false_ends_no_list(place: OptionPlace) -> None:
    options = {
        "layers": ScriptOption("--layers", OptionKind.LIST, place=place),
        "amp": ScriptOption("--amp", OptionKind.FLAG, place=place),
        "v": ScriptOption("-v", OptionKind.COUNT, place=place),
        "pos": ScriptOption("pos", OptionKind.POSITIONAL),
    }
    form = ParamFormat(ParamStyle.ARGS, script="a.py", options=options)
    params = {"layers": "1,2", "amp": False, "v": 0}
    for words, given in ((("a.py", "x"), params), (("a.py",), {**params, "pos": "x"})):
        assert fill_command(words, given, form).words == ("a.py", "x", "--layers", "1", "2")


def test_command_of_a_shell_shows_no_option() -> None:
    command = fill_command(("bash", "-c", "python a.py --rate {lr}"), {"lr": 1}, None)
    assert command.given == {"lr": ""} and command.placed == ("lr",)


def test_escaped_braces_and_the_end_of_options() -> None:
    assert fill_command((*COMMAND, "{{x}}"), {}, ARGS).words[2:] == ("{x}",)
    assert fill_command((*COMMAND, "--", "file"), {"amp": True}, ARGS).words[2:] == ("--amp", "--", "file")


def test_json_of_a_format_may_lack_fields() -> None:
    form = param_format_from_json({"style": "args", "options": {"lr": {"word": "--lr"}}})
    assert form == ParamFormat(ParamStyle.ARGS, options={"lr": ScriptOption("--lr")})

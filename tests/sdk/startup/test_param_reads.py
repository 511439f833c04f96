"""Parameters that a process reads, as its import hooks record them."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest

from hopyard.sdk.startup.argument_list import WatchedArguments
from tests.sdk.startup.test_import_hooks import run_python

SWEEP = "import os; dict(os.environ), {**os.environ}, os.environ.copy(), list(os.environ.items())"
PARSER = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr-rate', dest='lr')"
LAUNCHER = f"{PARSER}; p.add_argument('rest', nargs=argparse.REMAINDER)"
COMMANDS = f"{PARSER}; q = p.add_subparsers().add_parser('train'); q.add_argument('--x')"
CLICK = (
    "import click\n@click.command()\n@click.option('--lr-rate')\n@click.option('--x')\n"
    "def main(**options): ...\nmain({words}standalone_mode=False)"
)
SPAWN = (
    "import multiprocessing, operator\n"
    "process = multiprocessing.get_context('spawn').Process(target=operator.add, args=(1, 2))\n"
    "process.start(); process.join(); assert process.exitcode == 0"
)
HELD, LOOKED = {"python", "holder"}, {"python", "holder", "arguments"}
PARSED = {"python", "holder", "parser"}


def reads_of(code: str, folder: Path, *words: str, **params: str) -> tuple[list[str], set[str]]:
    """Returns the names that the process has read, and the kinds of its records."""
    given = params or {"lr": "LR_RATE" if "environ" in code else "--lr-rate", "x": ""}
    result = run_python(
        code,
        folder,
        *words,
        HOPYARD_REPLICA_DIR=str(folder),
        HOPYARD_PARAMS_GIVEN=json.dumps(given),
        HOPYARD_PARAMS='{"lr": 1, "x": 2}',
        LR_RATE="1",
        x="2",
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in (folder / "param-reads").read_text().splitlines()]
    return sorted(name for line in lines for name in line.get("read", ())), {line["by"] for line in lines}


@pytest.mark.parametrize(
    ("code", "read", "kinds"),
    [
        (SWEEP, [], {"python", "copy"}),
        (
            "import os; [os.environ[n] for n in ('LR_RATE', 'LR_RATE', 'x')]",
            ["lr", "x"],
            {"python", "variable"},
        ),
        ("import os; os.environ.get('LR_RATE')", ["lr"], {"python", "variable"}),
        ("import os; os.environ['HOPYARD_PARAMS']", ["lr", "x"], {"python", "variable"}),
        (f"{PARSER}; p.parse_known_args()", ["lr"], PARSED),
        ("import argparse; argparse.ArgumentParser().parse_known_args()", ["lr"], PARSED),
        (f"{PARSER}; import sys; p.parse_args(sys.argv[1:])", ["lr"], {*PARSED, "arguments"}),
        (f"{PARSER}; p.parse_known_args(['other'])", [], HELD),
        (f"{PARSER}; p.parse_args([]); p.parse_args(['--lr-rate', '1'])", [], HELD),
        (f"{PARSER}; import sys; sys.argv = ['a.py']; p.parse_args()", [], HELD),
        (f"{LAUNCHER}; p.parse_known_args()", ["lr"], {"python", "holder", "launcher"}),
        (f"{COMMANDS}; p.parse_args(['train', '--x', '1'])", [], HELD),
        (CLICK.format(words=""), ["lr", "x"], {*PARSED, "arguments"}),
        (CLICK.format(words="['--lr-rate', '1'], "), [], HELD),
        (SPAWN, [], LOOKED),  # the child may look at its copy
    ],
)
def test_reads_are_recorded(code: str, read: list[str], kinds: set[str], tmp_path: Path) -> None:
    assert reads_of(code, tmp_path, "--lr-rate", "1") == (read, kinds)


def test_libraries_write_the_arguments_as_a_plain_list(tmp_path: Path) -> None:
    check = "assert yaml.safe_dump(sys.argv) == yaml.dump([*sys.argv]) == yaml.dump(sys.argv)"
    assert reads_of(f"import yaml, sys; {check}", tmp_path, "--lr-rate", "1") == ([], LOOKED)
    (tmp_path / "param-reads").unlink()
    plain = f"{PARSER}; p.parse_args(); import sys; assert type(sys.argv) is type(sys.orig_argv) is list"
    assert reads_of(plain, tmp_path, "--lr-rate", "1") == (["lr"], PARSED)


def test_parser_of_another_program_is_not_that_of_the_script(tmp_path: Path) -> None:
    assert reads_of(f"{PARSER}; p.parse_known_args()", tmp_path, "--logdir", "y") == (
        ["lr"],
        {"python", "other"},
    )


def test_options_of_a_subcommand_count(tmp_path: Path) -> None:
    assert reads_of(f"{COMMANDS}; p.parse_args()", tmp_path, "--lr-rate=1", "train", "--x", "2") == (
        ["lr", "x"],
        PARSED,
    )


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["lr=1"], {"lr": "lr"}),
        (["+lr=1"], {"lr": "+lr"}),
        (["--lr", "1"], {"lr": ""}),
        (["1"], {"lr": ""}),
        (['{"lr": 1}'], {"lr": ""}),
    ],
)
def test_arguments_of_each_form_are_found(words: list[str], given: dict[str, str], tmp_path: Path) -> None:
    assert reads_of("print('no look')", tmp_path, *words, **given) == ([], HELD)
    (tmp_path / "param-reads").unlink()
    assert reads_of("import sys; sys.argv[1]", tmp_path, *words, **given) == ([], LOOKED)


ARGUMENTS = ["a.py", "--lr", "1"]


@pytest.mark.parametrize(
    "look",
    [
        "value[1:]",
        "value[-1]",
        "list(value)",
        "tuple(value)",
        "[*value]",
        "(lambda *words: words)(*value)",
        "['python'] + value",
        "value + ['x']",
        "'--debug' in value",
        "' '.join(value)",
        "str(value)",
        "value == ['a.py', '--lr', '1']",
        "json.loads(json.dumps(value))",
        "pickle.loads(pickle.dumps(value))",
        "copy.copy(value)",
        "copy.deepcopy(value)",
        "value.copy()",
        "sorted(value)",
        "list(reversed(value))",
        "value.index('--lr')",
        "value.pop(0)",
        "value * 2",
        "list(map(str, value))",
        "extended(['python'], value)",
    ],
)
def test_look_at_the_arguments_gives_what_a_list_gives(look: str) -> None:
    def extended(words: list[str], more: list[str]) -> list[str]:
        same = words
        words += more
        assert same is words, "the list itself grows"
        return words

    seen: list[bool] = []
    watched = WatchedArguments(ARGUMENTS)
    watched.on_read = lambda: seen.append(True)
    known = {"json": json, "pickle": pickle, "copy": copy, "extended": extended}
    expected = eval(look, {**known, "value": list(ARGUMENTS)})
    result = eval(look, {**known, "value": watched})
    assert (result, type(result), seen) == (expected, type(expected), [True])


def test_name_of_the_program_and_the_number_of_arguments_are_no_look() -> None:
    seen: list[bool] = []
    watched = WatchedArguments(ARGUMENTS)
    watched.on_read = lambda: seen.append(True)
    watched[0] = "b.py"
    watched += ["--x"]
    watched.append("2")
    assert (watched[0], watched[:1], len(watched), bool(watched), seen) == ("b.py", ["b.py"], 5, True, [])
    assert watched.plain() == ["b.py", "--lr", "1", "--x", "2"] and not seen

"""From the command line to the submission request, without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.cli.terminal.console import print_message
from hopyard.cli.terminal.transfer_bar import TransferBar
from hopyard.client import pack_code
from hopyard.client.build_run import build_request
from hopyard.config.run_request import RunRequest, default_project
from hopyard.datasets.pack import CODE_RULES, pack_tree
from hopyard.errors import SpecError
from tests.cli.in_process import hop


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "mnist"
    place.mkdir()
    (place / "train.py").write_text("print(1)\n")
    (place / "go.sh").write_text("#!/bin/sh\n")
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOPYARD_HOME", str(tmp_path / "home"))
    return place


def parse_run(what: str, *arguments: str, **options: Any) -> RunRequest:
    return build_request(what, arguments, Path.cwd(), options)


def test_script_with_all_options() -> None:
    run = parse_run(
        "train.py",
        "--epochs",
        "3",
        datasets=("mnist:2", "labels"),
        params=("lr=0.1", "amp=true"),
        env=("A=1",),
        tags=("k=v",),
        label="first",
        cpus="0.5",
        memory="8G",
        gpus="A100:2",
        time="2h",
        replicas="2-4",
        priority=70,
        project="other",
        queue="q",
        preemptible=False,
        topology="near:rack",
        pool="a,b",
        where=("rack=r",),
        extras=("fpga=2",),
    )
    spec = run.spec(code="c" * 64, git=None, environment={"interpreter": "/p"})
    assert spec == {
        "project": "other",
        "roles": [
            {
                "command": ["python", "-u", "train.py", "--epochs", "3"],
                "name": "worker",
                "replicas": 4,
                "min_replicas": 2,
                "resources": {
                    "cpu_milli": 500,
                    "cpu_limited": True,
                    "memory_bytes": 8 * 2**30,
                    "gpus": 2,
                    "gpu_models": ["A100"],
                    "gpu_milli": 0,
                    "gpu_memory_bytes": 0,
                    "extras": (("fpga", 2),),
                },
                "where": {"pools": ("a", "b"), "labels": (("rack", "r"),)},
                "topology": None,
                "essential": True,
            }
        ],
        "code": "c" * 64,
        "label": "first",
        "datasets": [{"name": "mnist", "version": 2}, {"name": "labels", "version": 0}],
        "params": {"lr": 0.1, "amp": True},
        "env": {"A": "1"},
        "secrets": [],
        "tags": {"k": "v"},
        "environment": {"interpreter": "/p"},
        "git": None,
        "queue": "q",
        "priority": 70,
        "preemptible": False,
        "topology": {"rule": "near", "level": "rack", "slice": 1},
        "time_limit_s": 7200.0,
        "max_output_bytes": None,
        "max_metrics_bytes": None,
        "param_format": None,
    }


def test_spec_is_valid_in_the_domain() -> None:
    import msgspec

    from hopyard.domain.gang import Closeness, NodeSelector, Topology
    from hopyard.domain.resources import Resources
    from hopyard.domain.run import RunSpec

    explanation = parse_run("train.py", gpus="1").spec(
        code=None,
        git={"commit": "1", "branch": "", "dirty": True, "remote": "", "diff": None},
        environment={"packages": {"a": "1"}},
    )
    assert msgspec.convert(explanation, RunSpec).roles[0].resources.gpus == 1
    explanation = parse_run(
        "train.py", gpu_memory="1G", extras=("fpga",), where=("a=b",), topology="same:node/2"
    ).spec(code=None, git=None, environment={})
    spec = msgspec.convert(explanation, RunSpec)
    assert spec.roles[0].resources == Resources(gpu_memory_bytes=2**30, extras=(("fpga", 1),))
    assert spec.roles[0].where == NodeSelector(labels=(("a", "b"),))
    assert spec.topology == Topology("node", Closeness.SAME, 2)


def test_defaults() -> None:
    run = parse_run("train.py")
    assert (run.project, run.priority, run.time_limit_s, run.roles[0].replicas, run.roles[0].cpu_milli) == (
        "mnist",
        None,
        None,
        1,
        1000,
    )


def test_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert parse_run("echo", "hello").roles[0].command == ("echo", "hello")
    assert parse_run("python3", "-m", "x").roles[0].command == ("python", "-m", "x")
    own = tmp_path / "venv" / "bin"
    own.mkdir(parents=True)
    (own / "torchrun").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{own}:/usr/bin:/bin")
    assert parse_run("torchrun", "x").roles[0].command == (str(own / "torchrun"), "x")
    assert parse_run("torchrun", "x", requirements=Path("r.txt")).roles[0].command == ("torchrun", "x")


def test_script_in_another_folder_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")
    request = parse_run("../other.py")
    assert request.roles[0].command == ("python", "-u", "other.py")
    assert request.project == default_project(tmp_path)


def test_large_code_folder_is_warned_about_before_hashing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pack_code, "_WARN_CODE_BYTES", 1000)
    result: list[str] = []

    class Bar(TransferBar):
        def advance(self, size_bytes: int, /) -> None:
            result.append(capsys.readouterr().err)

    (folder / "data.bin").write_bytes(bytes(2000))
    with Bar() as bar:
        progress = pack_code._SizeWarning(bar, print_message)
        pack_tree(folder, rules=CODE_RULES, progress=progress)
    assert progress.warned
    assert result[0].startswith("note: the code is 2.0 KiB\nhint: ")


def test_script_path_is_relative_to_the_packed_folder(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "deep.py").write_text("")
    for script in (
        "sub/deep.py",
        "./sub/deep.py",
        f"../{folder.name}/sub/deep.py",
        str(folder / "sub" / "deep.py"),
    ):
        assert parse_run(script).roles[0].command == ("python", "-u", "sub/deep.py"), script


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["trian.py"], "trian.py does not exist", "did you mean `train.py`?"),
        (["train"], "`train` is not a program that can be run", "hop run train.py"),
        (["./go.sh"], "`./go.sh` is not executable", "chmod +x ./go.sh"),
        (["go.sh"], "`go.sh` is not a program that can be run", "hop run ./go.sh"),
        (["."], "`.` is a folder", "give a Python script"),
        (["python", "-m", "pkg", "-x"], "-m after a script or command", "hop run python -- -m pkg -x"),
        (["python", "-mpkg"], "-mpkg after a script or command", "hop run python -- -mpkg"),
        (["python", "-c", "print(1)"], "no option -c", "hop run python -- -c 'print(1)'"),
        (["--gpus", "1", "train.py", "--lr=3"], "no option --lr", "hop run --gpus 1 train.py -- --lr=3"),
        (["none.yaml"], "there is no file none.yaml", ""),
        (["train.py", "--cpus", "0"], "--cpus: `0` is not a number of CPUs", "0.5"),
        (["train.py", "--memory", "8"], "--memory: `8` has no unit", "did you mean `8G`?"),
        (["train.py", "--gpus", "-1"], "--gpus: `-1` is not a number of GPUs", "A100:8"),
        (["train.py", "--time", "soon"], "--time: `soon` is not a time", "90m"),
        (["train.py", "--replicas", "0"], "--replicas: 0 is not from 1", "together"),
        (
            ["train.py", "--priority", "101"],
            "--priority: 101 is not from 0 to 100",
            "larger priorities start first",
        ),
        (["train.py", "-d", "../x"], "-d: `../x` is not a name", "letters"),
        (["train.py", "-d", "a", "-d", "a:1"], "-d: the dataset `a` is given twice", ""),
        (["train.py", "-p", "lr"], "-p: `lr` is not of the form K=V", "lr=0.1"),
        (["train.py", "-e", "NOT_SET_ANYWHERE"], "-e: `NOT_SET_ANYWHERE` is not set here", "give it a value"),
        (["train.py", "-n", "a/b"], "--name: `a/b` is not a name", "letters"),
        (["train.py", "--project", "../up"], "--project: `../up` is not a name", "letters"),
        (["train.py", "--python", "3.12"], "--python: version 3.12", "--requirements"),
        (["train.py", "--python", "/no/python"], "--python: /no/python is not an interpreter", ""),
        (["train.py", "--requirements", "none.txt"], "invalid value for '--requirements'", ""),
        (["train.py", "--epochs", "3"], "no option --epochs", "after `--`"),
        (["train.py", "--replica", "3"], "no option --replica", "did you mean --replicas?"),
        ([], "missing argument", "hop run --help"),
    ],
)
def test_invalid_options_are_refused_without_a_server(
    words: list[str], error: str, hint: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = hop(capfd, "run", *words)
    assert result.code == 2
    assert result.out == ""
    first, *rest = result.err.splitlines()
    assert first.startswith("error: ")
    assert error.lower() in first.lower()
    assert not hint or any(line.startswith("hint: ") and hint in line for line in rest)
    assert not (tmp_path / "home").exists(), "no server was started and no file written"


GANG = "time: 1h\nparams: {lr: 0.5, n: 1}\nroles:\n  - {name: a, command: train.py}\n"


def test_command_line_overrides_the_file(folder: Path) -> None:
    (folder / "hop.yaml").write_text(GANG)
    run = parse_run("hop.yaml", "--more", params=("lr=0.1",), time="2h", replicas="3", cpus="2")
    assert run.params == {"lr": 0.1, "n": 1}
    assert run.time_limit_s == 7200
    assert (run.roles[0].command, run.roles[0].replicas, run.roles[0].cpu_milli) == (
        ("python", "-u", "train.py", "--more"),
        3,
        2000,
    )


def test_resource_options_need_a_single_role(folder: Path) -> None:
    (folder / "hop.yaml").write_text(GANG + "  - {name: b, command: train.py}\n")
    assert len(parse_run("hop.yaml", time="2h").roles) == 2
    with pytest.raises(SpecError, match=r"--gpus: hop\.yaml has 2 roles"):
        parse_run("hop.yaml", gpus="1")
    with pytest.raises(SpecError, match="arguments"):
        parse_run("hop.yaml", "more")


def test_secret_values_in_the_run_file_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = (
        "env: {WANDB_API_KEY: abc, HF_TOKEN: '', DATABASE: 'postgresql://me:pw@db/x', "
        "TOKENIZERS_PARALLELISM: 'false'}\n"
    )
    (folder / "hop.yaml").write_text(env + GANG)
    parse_run("hop.yaml")
    output = capsys.readouterr().err
    assert (
        "hop.yaml holds the value of WANDB_API_KEY, DATABASE, and every user" in output
        and "`hop secret set WANDB_API_KEY`" in output
    )
    (folder / "hop.yaml").write_text("env: {TOKENIZERS_PARALLELISM: 'false'}\n" + GANG)
    parse_run("hop.yaml", env=("HF_TOKEN=abc",))
    assert capsys.readouterr().err == "", "values of the command line are not in a file"

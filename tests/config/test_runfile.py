"""`hop.yaml`: what it means, and that every bad value is refused with its file, its path and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.runfile import read_runfile
from hopyard.errors import SpecError

WHOLE = """
name: ddp
project: mnist
datasets: [mnist, labels:3]
params: {lr: 1e-4, layers: 3, amp: true, note: null, kind: "3"}
env: {NCCL_DEBUG: INFO, OMP: 2}
tags: {team: vision}
requirements: requirements.txt
python: "3.11"
priority: 70
time: 2h
roles:
  - name: worker
    replicas: 2
    command: python train.py --name 'a b'
    resources: {cpus: 2.5, memory: 4G, gpus: A100:1}
  - name: chief
    command: [main.py, 3]
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "hop.yaml"
    file.write_text(text)
    return file


def refused(folder: Path, text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read_runfile(write(folder, text), folder=folder)
    return caught.value


def test_a_whole_file(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    run = read_runfile(write(tmp_path, WHOLE), folder=tmp_path)
    assert (run.label, run.project, run.priority, run.time_limit_s, run.python) == ("ddp", "mnist", 70, 7200.0, "3.11")
    assert run.datasets == (("mnist", 0), ("labels", 3))
    assert run.params == {"lr": 1e-4, "layers": 3, "amp": True, "note": None, "kind": "3"}
    assert run.env == {"NCCL_DEBUG": "INFO", "OMP": "2"}
    assert run.requirements == tmp_path / "requirements.txt"
    worker, chief = run.roles
    assert worker.command == ("python", "train.py", "--name", "a b")
    assert (worker.replicas, worker.cpu_milli, worker.memory_bytes, worker.gpus, worker.gpu_models) == (2, 2500, 4 * 2**30, 1, ("A100",))
    assert chief.command == ("python", "-u", "main.py", "3")
    assert (chief.replicas, chief.cpu_milli, chief.memory_bytes, chief.gpus) == (1, 1000, 0, 0)


def test_the_least_file(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    run = read_runfile(write(folder, "roles: [{command: ./go.sh}]"), folder=folder)
    assert run.project == "my-project"
    assert run.roles[0].command == ("./go.sh",)


ROLE = "roles: [{command: x}]\n"


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("", "roles: there is none", "command"),
        ("- a\n- b\n", "is not a mapping", "key: value"),
        ("roles: 3", "roles: `3` is not a list", "- …"),
        ("roles: [3]", "roles.0: `3` is not a mapping", "key: value"),
        ("roles: [{}]", "roles.0.command: missing", "python train.py"),
        ("roles: [{command: ''}]", "roles.0.command: empty", "python train.py"),
        ("roles: [{command: \"a 'b\"}]", "roles.0.command: `a 'b` cannot be split", "quotes"),
        ("roles: [{command: {a: 1}}]", "roles.0.command", "python train.py"),
        ("roles: [{command: x, replica: 2}]", "roles.0: there is no key `replica`", "did you mean `replicas`?"),
        ("roles: [{command: x, replicas: 0}]", "roles.0.replicas: `0` is not a whole number from 1", ""),
        ("roles: [{command: x, replicas: two}]", "roles.0.replicas: `two`", ""),
        ("roles: [{command: x, replicas: true}]", "roles.0.replicas: `true`", ""),
        ("roles: [{command: x, resources: {gpu: 1}}]", "roles.0.resources: there is no key `gpu`", "did you mean `gpus`?"),
        ("roles: [{command: x, resources: {gpus: -1}}]", "roles.0.resources.gpus: `-1` is not a number of GPUs", "A100:8"),
        ("roles: [{command: x, resources: {cpus: [1]}}]", "roles.0.resources.cpus", "0.5"),
        ("roles: [{command: x, resources: {memory: 8}}]", "roles.0.resources.memory: `8` has no unit", "did you mean `8G`?"),
        ("roles: [{command: x, resources: {memory: lots}}]", "roles.0.resources.memory: `lots`", "8G"),
        ("roles: [{command: x, name: a}, {command: y, name: a}]", "roles.1.name: `a` is the name of another role", ""),
        ("roles: [{command: x, name: ../a}]", "roles.0.name: `../a` is not a name", "letters"),
        (ROLE + "rolls: []", "there is no key `rolls`", "did you mean `roles`?"),
        (ROLE + "priority: 101", "priority: `101` is not a whole number from 0 to 100", ""),
        (ROLE + "time: soon", "time: `soon` is not a time", "2h30m"),
        (ROLE + "datasets: [3]", "datasets.0: `3` is not a dataset", "mnist:3"),
        (ROLE + "datasets: [../x]", "datasets.0: `../x` is not a name", "letters"),
        (ROLE + "datasets: [a, 'a:2']", "datasets.1: the dataset `a` is named twice", ""),
        (ROLE + "datasets: ['a:x']", "datasets.0: `x` is not a version", "mnist:3"),
        (ROLE + "params: {lr: [1, 2]}", "params.lr: `[1, 2]` is not a single value", "text"),
        (ROLE + "params: {lr: .inf}", "params.lr: `inf` is not a finite number", "quotes"),
        (ROLE + "params: {day: 2024-01-01}", "params.day: `2024-01-01`", "quote a date"),
        (ROLE + "params: {1: 2}", "params: the key `1` is not a text", "quotes"),
        (ROLE + "env: {A: yes}", "env.A: `true` is not a text", "quotes"),
        (ROLE + "env: {HOPYARD_URL: x}", "env.HOPYARD_URL", "HOPYARD_"),
        (ROLE + "python: 3.10", "python: `3.1` is not a text", "quotes"),
        (ROLE + "requirements: none.txt", "requirements: there is no file", "relative"),
        (ROLE + "project: a/b", "project: `a/b` is not a name", "letters"),
        (ROLE + "name: x\nname: y", "line 3: the key `name` stands there twice", ""),
        ("roles: [", "line 1: not YAML", "indentation"),
        ("a: !!python/object:os.system x", "not YAML", ""),
        ("\tx: 1", "not YAML", ""),
    ],
)  # fmt: skip
def test_bad_values(tmp_path: Path, text: str, where: str, hint: str) -> None:
    told = refused(tmp_path, text)
    assert where in told.message
    assert told.message.startswith(str(tmp_path / "hop.yaml"))
    assert any(hint in line for line in told.hints) or not hint


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no file"):
        read_runfile(tmp_path / "none.yaml", folder=tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        read_runfile(tmp_path, folder=tmp_path)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    file = folder / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        read_runfile(file, folder=folder)
    except SpecError as told:
        assert str(file) in told.message

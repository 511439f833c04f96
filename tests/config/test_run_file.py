"""`hop.yaml`: its meaning, and refusals of invalid values with file, path and allowed values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.resource_requests import TopologyRequest
from hopyard.config.run_file import read_run_file
from hopyard.errors import SpecError

WHOLE = """
name: ddp
project: mnist
datasets: [mnist, labels:3=../labels]
params: {lr: 1e-4, layers: 3, amp: true, note: null, kind: "3"}
env: {NCCL_DEBUG: INFO, OMP: 2}
tags: {team: vision}
requirements: requirements.txt
python: "3.11"
queue: research
priority: 70
preemptible: false
topology: balanced:rack/2
time: 2h
roles:
  - name: worker
    replicas: 2
    command: python train.py --name 'a b'
    arguments: [--lr, "{lr}", --rate, 1e-3]
    resources: {cpus: 2.5, memory: 4G, gpus: A100:1, extras: {tpu: 4, fpga: 1}}
    pool: [fast, slow]
    labels: {zone: "1", rack: a}
    topology: same:node
  - name: chief
    command: [main.py, 3]
    replicas: {min: 2, max: 8}
    resources: {gpu_memory: 20G, gpus: H100}
    pool: a,b
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "hop.yaml"
    file.write_text(text)
    return file


def refusal(folder: Path, text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read_run_file(write(folder, text), folder=folder)
    return caught.value


def test_interpreter_of_a_path(tmp_path: Path) -> None:
    (tmp_path / "venv").symlink_to(sys.executable)
    run = read_run_file(write(tmp_path, ROLE + "python: ./venv"), folder=tmp_path)
    assert (run.python, run.interpreter) == ("", str(tmp_path / "venv"))


def test_file_with_all_keys(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    run = read_run_file(write(tmp_path, WHOLE), folder=tmp_path)
    assert (run.label, run.project, run.priority, run.time_limit_s, run.python) == (
        "ddp",
        "mnist",
        70,
        7200.0,
        "3.11",
    )
    assert run.datasets == (("mnist", 0, ""), ("labels", 3, "../labels"))
    assert run.params == {"lr": 1e-4, "layers": 3, "amp": True, "note": None, "kind": "3"}
    assert run.env == {"NCCL_DEBUG": "INFO", "OMP": "2"}
    assert run.requirements == tmp_path / "requirements.txt"
    worker, chief = run.roles
    words = ("--lr", "{lr}", "--rate", "1e-3")
    assert worker.command == ("python", "train.py", "--name", "a b", *words)
    assert (worker.replicas, worker.cpu_milli, worker.memory_bytes, worker.gpus, worker.gpu_models) == (
        2,
        2500,
        4 * 2**30,
        1,
        ("A100",),
    )
    assert chief.command == ("python", "-u", "main.py", "3")
    assert (chief.min_replicas, chief.replicas, chief.cpu_milli, chief.memory_bytes, chief.gpus) == (
        2,
        8,
        1000,
        0,
        0,
    )
    assert (chief.gpu_memory_bytes, chief.gpu_models, chief.pools) == (20 * 2**30, ("H100",), ("a", "b"))
    assert (run.queue, run.preemptible, run.topology) == (
        "research",
        False,
        TopologyRequest("balanced", "rack", 2),
    )
    assert (worker.extras, worker.pools, worker.labels) == (
        (("fpga", 1), ("tpu", 4)),
        ("fast", "slow"),
        (("rack", "a"), ("zone", "1")),
    )
    assert (worker.min_replicas, worker.topology) == (0, TopologyRequest("same", "node"))


def test_minimal_file(tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    run = read_run_file(write(folder, "roles: [{command: ./go.sh}]"), folder=folder)
    assert run.project == "my-project"
    assert run.roles[0].command == ("./go.sh",)
    assert (run.queue, run.priority, run.preemptible, run.topology) == (None, None, True, None)


ROLE = "roles: [{command: x}]\n"


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("", "roles: no role is given", "command"),
        ("- a\n- b\n", "is not a mapping", "key: value"),
        ("roles: 3", "roles: `3` is not a list", "- …"),
        ("roles: {worker: {command: x}}", "roles: a mapping is not a list", "name: worker"),
        ("command: x", "the key `command` belongs to a role", "roles: [{command: …}]"),
        ("replicas: 2\n" + ROLE, "the key `replicas` belongs to a role", ""),
        ("roles: [3]", "roles.0: `3` is not a mapping", "key: value"),
        ("roles: [{}]", "roles.0.command: missing", "python train.py"),
        ("roles: [{command: ''}]", "roles.0.command: empty", "python train.py"),
        ('roles: [{command: "a \'b"}]', "roles.0.command: `a 'b` cannot be split", "quotes"),
        ("roles: [{command: {a: 1}}]", "roles.0.command", "python train.py"),
        (
            "roles: [{command: x, replica: 2}]",
            "roles.0: there is no key `replica`",
            "did you mean `replicas`?",
        ),
        ("roles: [{command: x, replicas: 0}]", "roles.0.replicas: `0` is not a whole number from 1", ""),
        ("roles: [{command: x, replicas: two}]", "roles.0.replicas: `two`", ""),
        ("roles: [{command: x, replicas: true}]", "roles.0.replicas: `true`", ""),
        (
            "roles: [{command: x, resources: {gpu: 1}}]",
            "roles.0.resources: there is no key `gpu`",
            "did you mean `gpus`?",
        ),
        (
            "roles: [{command: x, resources: {gpus: -1}}]",
            "roles.0.resources.gpus: `-1` is not a number of GPUs",
            "A100:8",
        ),
        ("roles: [{command: x, resources: {cpus: [1]}}]", "roles.0.resources.cpus", "0.5"),
        (
            "roles: [{command: x, resources: {memory: 8}}]",
            "roles.0.resources.memory: `8` has no unit",
            "did you mean `8G`?",
        ),
        (
            "roles: [{command: x, resources: {memory: 0}}]",
            "roles.0.resources.memory: `0` is not an amount of memory above 0",
            "leave it out",
        ),
        (
            "roles: [{command: x, resources: {gpus: .nan}}]",
            "roles.0.resources.gpus: `.nan` is not a number of GPUs",
            "A100:8",
        ),
        ("roles: [{command: x, resources: {memory: lots}}]", "roles.0.resources.memory: `lots`", "8G"),
        (
            "roles: [{command: x, name: a}, {command: y, name: a}]",
            "roles.1.name: `a` is also the name of another role",
            "",
        ),
        ("roles: [{command: x, name: ../a}]", "roles.0.name: `../a` is not a name", "letters"),
        (
            "roles: [{command: x, replicas: {min: 3, max: 2}}]",
            "roles.0.replicas: the minimum 3 is greater than the maximum 2",
            "did you mean 2-3?",
        ),
        ("roles: [{command: x, replicas: {min: 3}}]", "roles.0.replicas: `max` is missing", "max: 8"),
        (
            "roles: [{command: x, replicas: {min: 0, max: 2}}]",
            "roles.0.replicas.min: `0` is not a whole number from 1",
            "",
        ),
        ("roles: [{command: x, replicas: {least: 1}}]", "roles.0.replicas: there is no key `least`", "max"),
        (
            "roles: [{command: x, resources: {gpus: 1.5}}]",
            "roles.0.resources.gpus: `1.5` is neither whole GPUs nor a share",
            "0.5",
        ),
        (
            "roles: [{command: x, resources: {gpus: 0.5, gpu_memory: 2G}}]",
            "roles.0.resources.gpu_memory: gpus 0.5 already gives a share",
            "one of the two",
        ),
        (
            "roles: [{command: x, resources: {gpu_memory: 0}}]",
            "roles.0.resources.gpu_memory: 0 is not a share",
            "20G",
        ),
        (
            "roles: [{command: x, resources: {extras: {fpga: 0}}}]",
            "roles.0.resources.extras.fpga: `0` is not a whole number from 1",
            "",
        ),
        (
            "roles: [{command: x, resources: {extras: {memory: 1}}}]",
            "roles.0.resources.extras.memory: `memory` has its own option",
            "--memory",
        ),
        (
            "roles: [{command: x, pool: [1]}]",
            "roles.0.pool.0: `1` is not the name of a pool",
            "pool: [fast, slow]",
        ),
        ("roles: [{command: x, pool: a/b}]", "roles.0.pool: `a/b` is not a name", "letters"),
        ("roles: [{command: x, labels: {rack: 3}}]", "roles.0.labels.rack: `3` is not a text", "quotes"),
        ("roles: [{command: x, topology: near}]", "roles.0.topology: `near` has no level", "near:node"),
        (ROLE + "topology: {rule: same}", "topology: ", "same:node"),
        (ROLE + "preemptible: 'nope'", "preemptible: `nope` is neither true nor false", ""),
        (ROLE + "queue: a/b", "queue: `a/b` is not a name", "letters"),
        (ROLE + "rolls: []", "there is no key `rolls`", "did you mean `roles`?"),
        (ROLE + "priority: 101", "priority: `101` is not a whole number from 0 to 100", ""),
        (ROLE + "time: soon", "time: `soon` is not a time", "2h30m"),
        (ROLE + "time: [1, 2]", "time: `[1, 2]` is not a time", "2h30m"),
        (ROLE + "datasets: [3]", "datasets.0: `3` is not a dataset", "mnist:3"),
        (ROLE + "datasets: [../x]", "datasets.0: `../x` is not a name", "letters"),
        (ROLE + "datasets: [a, 'a:2']", "datasets.1: the dataset `a` is given twice", ""),
        (ROLE + "datasets: ['a:x']", "datasets.0: `x` is not a version", "mnist:3"),
        (ROLE + "params: {lr: [1, 2]}", "params.lr: `[1, 2]` is not a single value", "text"),
        (ROLE + "params: {lr: .inf}", "params.lr: `.inf` is not a finite number", "quotes"),
        (ROLE + "params: {1: 2}", "params: the key `1` is not a text", "quotes"),
        (ROLE + "env: {A: [yes]}", "env.A: `['yes']` is not a text", "it is one text"),
        (ROLE + "env: {A: null}", "env.A: it has no value", '`A: "null"` for the word'),
        (ROLE + "env: {A: }", "env.A: it has no value", '`A: ""` for an empty text'),
        (ROLE + "tags: {a: ~}", "tags.a: it has no value", '"~"'),
        (ROLE + "name: 010", "name: `010`", ""),
        (ROLE + "queue: 1e5", "queue: `1e5` is not a text", 'in quotes: "1e5"'),
        (ROLE + "env: {HOPYARD_URL: x}", "env.HOPYARD_URL", "HOPYARD_"),
        (ROLE + "python: 3.10", "python: `3.10` is not a text", "quotes"),
        (ROLE + "python: bin/none", "bin/none is not an interpreter", "relative to the folder"),
        (ROLE + "requirements: none.txt", "requirements: there is no file", "relative"),
        (ROLE + "project: a/b", "project: `a/b` is not a name", "letters"),
        (ROLE + "name: x\nname: y", "line 3: the key `name` is given twice", "the other is in line 2"),
        ("roles: [", "line 1: not YAML", "indentation"),
        ("a: !!python/object:os.system x", "not YAML", ""),
        ("\tx: 1", "not YAML", ""),
    ],
)
def test_invalid_values_are_refused(tmp_path: Path, text: str, where: str, hint: str) -> None:
    result = refusal(tmp_path, text)
    assert where in result.message
    assert result.message.startswith(str(tmp_path / "hop.yaml"))
    assert any(hint in line for line in result.hints) or not hint


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no file"):
        read_run_file(tmp_path / "none.yaml", folder=tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        read_run_file(tmp_path, folder=tmp_path)


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    file = folder / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        read_run_file(file, folder=folder)
    except SpecError as told:
        assert str(file) in told.message

"""The hop.yaml of a request is read as exactly this request."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.cli.main import main
from hopyard.config.resource_requests import TopologyRequest
from hopyard.config.role_section import RESOURCE_KEYS, ROLE_KEYS
from hopyard.config.run_file import TOP_KEYS, read_run_file
from hopyard.config.run_file_text import format_run_file, run_file_values
from hopyard.config.run_request import DatasetRequest, EvaluatorRequest, RoleRequest, RunRequest
from hopyard.domain.checkpoint_retention import RetentionRule
from hopyard.domain.notification import NotifyOn, NotifyTarget
from hopyard.domain.restart_policy import NO_RESTART, RestartMode, RestartPolicy

MIB = 1024**2
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}[a-z0-9]", fullmatch=True)
ODD_WORDS = (
    "1e-3",
    "007",
    "true",
    "null",
    "no",
    "12:30",
    "0x1F",
    "~",
    "'a b'",
    '"q"',
    "a: b",
    "# c",
    "- x",
    "größe",
    " ",
)
WORDS = st.sampled_from(ODD_WORDS) | st.text("aZ :#'\"-.01,[]&*!|>%@`", min_size=1, max_size=8)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    WORDS,
)
VARIABLES = st.from_regex(r"[A-Z]{3}_[A-Z]{3}", fullmatch=True)
SECRETS = st.from_regex(r"[A-Z]{4}_KEY", fullmatch=True)  # never a name of `env`, which is refused
SIZES = st.integers(1, 2**40)
TOPOLOGIES = st.none() | st.builds(
    TopologyRequest, st.sampled_from(["same", "near", "balanced", "spread"]), NAMES, st.integers(1, 9)
)
GPUS = st.one_of(
    st.builds(dict, gpus=st.integers(0, 8)),
    st.builds(dict, gpus=st.integers(1, 8), gpu_models=st.just(("A100", "H100"))),
    st.builds(dict, gpu_milli=st.integers(1, 999), gpu_models=st.sampled_from([(), ("A100",)])),
    st.builds(dict, gpu_memory_bytes=SIZES, gpu_models=st.sampled_from([(), ("A100",), ("A100", "H100")])),
)
CPUS = st.just({}) | st.builds(dict, cpu_milli=st.integers(1, 64_000), cpu_limited=st.just(True))
LAUNCHERS = st.one_of(
    st.builds(dict, launcher=st.sampled_from(["none", "torchrun", "mpi", "tensorflow", "jax"])),
    st.builds(dict, launcher=st.sampled_from(["torchrun", "mpi"]), processes=st.integers(1, 9)),
)
REPLICAS = st.one_of(
    st.builds(dict, replicas=st.integers(1, 64)),
    st.builds(dict, min_replicas=st.integers(1, 4), replicas=st.integers(5, 8)),
)

RESTARTS = st.just(NO_RESTART) | st.builds(
    RestartPolicy,
    st.sampled_from(RestartMode),
    st.integers(1, 9),
    st.none() | st.just(3600.0),
    st.sampled_from([0.25, 1.0, 60.0]),
)


@st.composite
def roles(draw: st.DrawFn, *, name: str, image: str = "") -> RoleRequest:
    launcher = draw(LAUNCHERS)
    restart = draw(RESTARTS) if launcher["launcher"] != "mpi" else NO_RESTART  # MPI refuses one
    return RoleRequest(
        command=(draw(NAMES), *draw(st.lists(WORDS, max_size=3))),
        name=name,
        memory_bytes=draw(st.just(0) | SIZES),
        extras=tuple(
            sorted(draw(st.dictionaries(st.just("fpga") | st.just("tpu"), st.integers(1, 9))).items())
        ),
        pools=tuple(draw(st.lists(NAMES, max_size=2, unique=True))),
        labels=tuple(sorted(draw(st.dictionaries(NAMES, WORDS, max_size=2)).items())),
        topology=draw(TOPOLOGIES),
        essential=name == "worker" or draw(st.booleans()),
        private_folders=draw(st.booleans()),
        restart=restart,
        service=name != "worker" and draw(st.booleans()),
        image="" if launcher["launcher"] == "mpi" else image,
        **launcher,
        **draw(GPUS),
        **draw(CPUS),
        **draw(REPLICAS),
    )


@st.composite
def requests(draw: st.DrawFn) -> RunRequest:
    datasets = draw(st.lists(NAMES, max_size=2, unique=True))
    names = draw(st.sampled_from([("worker",), ("worker", "ps")]))
    image = draw(st.sampled_from(["", "lab:5000/train:2"])) if len(names) == 1 else ""
    run_roles = tuple(draw(roles(name=name, image=image)) for name in names)
    return RunRequest(
        roles=run_roles,
        project=draw(NAMES),
        label=draw(st.just("") | NAMES),
        datasets=tuple(
            DatasetRequest(
                name,
                draw(st.integers(0, 9)),
                draw(st.sampled_from(["", "../data", "/data/m"])) and f"../{name}",
            )
            for name in datasets
        ),
        params=draw(st.dictionaries(st.from_regex(r"[a-z][a-z_.]{0,8}", fullmatch=True), VALUES, max_size=4)),
        params_as=draw(st.sampled_from(["", "args", "env"])),
        env=draw(st.dictionaries(VARIABLES, st.just("") | WORDS)),
        tags=draw(st.dictionaries(NAMES, WORDS, max_size=2)),
        queue=draw(st.none() | NAMES),
        priority=draw(st.none() | st.integers(0, 100)),
        preemptible=draw(st.booleans()),
        topology=draw(TOPOLOGIES),
        time_limit_s=draw(st.none() | st.integers(1, 10**7).map(float) | st.just(0.25)),
        secrets=tuple(draw(st.lists(SECRETS, max_size=2, unique=True))),
        max_output_bytes=draw(st.none() | st.integers(MIB, 2**40)),
        max_metrics_bytes=draw(st.none() | st.integers(MIB, 2**40)),
        checkpoint_files=tuple(
            draw(st.lists(st.sampled_from(["*.pt", "out/[ab].bin"]), max_size=2, unique=True))
        ),
        outputs=tuple(draw(st.lists(st.sampled_from(["*.pt", "!tmp"]), max_size=2, unique=True))),
        metric_lines=tuple(draw(st.sampled_from([[], ["step {step}: loss {loss}"]]))),
        retention=draw(st.sampled_from([None, RetentionRule(), RetentionRule(2, 0, 10, "max:val_acc")])),
        resume_arguments=tuple(draw(st.sampled_from([[], ["--resume {checkpoint}", "-p a=b"]]))),
        ports=draw(st.sampled_from([{}, {"80": 80}, {"web": 80, "81": 81}])),
        preflight=draw(st.sampled_from(["", "off", "full"])),
        container=draw(st.booleans()) and all(role.launcher != "mpi" for role in run_roles),
        evaluator=draw(st.none() | st.builds(EvaluatorRequest, roles(name="judge"), st.booleans())),
        on_end=draw(
            st.sampled_from([(), (NotifyTarget("lab"), NotifyTarget("a@b.org", (NotifyOn.FAILED,)))])
        ),
    )


@settings(max_examples=40)
@given(requests())
def test_written_file_is_read_as_the_same_request(
    tmp_path_factory: pytest.TempPathFactory, request: RunRequest
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name, text in (
        ("a.yaml", format_run_file(request)),
        ("b.yaml", json.dumps(run_file_values(request))),
    ):
        (folder / name).write_text(text, encoding="utf-8")
        assert read_run_file(folder / name, folder=folder) == request


def test_every_key_is_written(tmp_path: Path) -> None:
    role = RoleRequest(
        ("a",), "main", 4, 2000, MIB, gpu_models=("A100",), cpu_limited=True, gpu_memory_bytes=MIB,
        extras=(("fpga", 1),), min_replicas=2, pools=("p",), labels=(("rack", "a"),),
        topology=TopologyRequest("same", "rack"), essential=False, private_folders=True,
        restart=RestartPolicy(RestartMode.ALWAYS),
        launcher="mpi", processes=2, service=True, image="python",
    )  # fmt: skip
    other = RoleRequest(("a",), "other", launcher="torchrun")
    request = RunRequest(
        (role, other), "p", "label", (DatasetRequest("d"),), {"lr": 0.1}, env={"A": "b"}, tags={"t": "v"},
        queue="q", priority=1, preemptible=False, topology=TopologyRequest("same", "node"), time_limit_s=60.0,
        requirements=tmp_path / "r.txt", interpreter=sys.executable, secrets=("S",), max_output_bytes=MIB,
        max_metrics_bytes=MIB, checkpoint_files=("c",), params_as="env", outputs=("o",),
        metric_lines=("m {a}",), ports={"web": 80}, on_end=(NotifyTarget("lab"),),
        resume_arguments=("--resume {checkpoint}",), idle_s=60.0, retention=RetentionRule(last=2),
        evaluator=EvaluatorRequest(role), preflight="full", container=True, network="none",
    )  # fmt: skip
    values = run_file_values(request)
    common = run_file_values(replace(request, roles=(other,)))
    # `restart` and `image` of the file are defaults of its roles, and written in each
    assert {*values, *common, "restart", "image"} == set(TOP_KEYS), (
        "a key that is not written is lost in `hop run --print-spec`"
    )
    assert set(values["roles"][0]) == set(ROLE_KEYS)
    assert set(values["roles"][0]["resources"]) == set(RESOURCE_KEYS)


def test_command_line_equals_its_printed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\np.parse_args()\n"
    )
    line = [
        "train.py",
        "--nodes",
        "2",
        "--replicas",
        "8",
        "--gpus",
        "2",
        "-e",
        "A=007",
        "-d",
        "mnist:3=../data",
        "--time",
        "90m",
        "--",
        "--lr",
        "1e-3",
    ]
    assert main(["run", "--print-spec", *line]) == 0
    out, err = capsys.readouterr()
    assert "note: 4 replicas with 2 GPUs each on each of 2 nodes" in err
    assert "topology: spread:node/4" in out and "params: {lr: 0.001}" in out
    (tmp_path / "hop.yaml").write_text(out)
    assert main(["run", "--print-spec", "hop.yaml"]) == 0
    assert capsys.readouterr().out == out
    assert main(["run", "--print-spec", "--json", "hop.yaml"]) == 0
    assert json.loads(capsys.readouterr().out)["roles"][0]["resources"] == {"gpus": 2}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--nodes", "3", "--replicas", "8"], "--nodes: --replicas 8 is not a multiple of 3 nodes"),
        (["--nodes", "2", "--replicas", "2-8"], "--nodes: --replicas 2-8 is not a multiple of 2 nodes"),
        (["--nodes", "2", "--topology", "same:node"], "--nodes: --topology is given, too"),
        (["--nodes", "0"], "--nodes: 0 is not from 1 to 4096"),
    ],
)
def test_invalid_nodes_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["run", "--print-spec", "train.py", *options]) == 2
    assert f"error: {problem}" in capsys.readouterr().err

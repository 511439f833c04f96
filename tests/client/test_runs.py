"""`hop.submit`, `hop.get_run` and `hop.runs` against a real server."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import hopyard as hop
from hopyard.api_client.local_server import connect
from hopyard.client.run_files import describe_stored_files
from hopyard.errors import NotFound, SpecError

TRAIN = """
import os, sys
from pathlib import Path
import hopyard as hop

p = hop.params(lr=0.1, epochs=3)
for epoch in range(p.epochs):
    hop.log(loss=p.lr / (epoch + 1), step=epoch)
    print("epoch", epoch)
print(os.environ["GREETING"], *sys.argv[1:], file=sys.stderr)
Path("model.txt").write_text(str(p.lr))
hop.summary(loss=0.5)
"""
LONG = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


def test_followed_run_prints_its_output(code: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (code / "train.py").write_text(TRAIN)
    run = hop.submit("train.py", env={"GREETING": "hello"}, params={"epochs": 2}).follow()
    assert run.phase == "succeeded" and run.exit_code == 0
    printed = capfd.readouterr()
    assert printed.out == "epoch 0\nepoch 1\n" and printed.err == "hello\n"


def test_submitted_run_is_awaited_and_read(code: Path, tmp_path: Path) -> None:
    (code / "train.py").write_text(TRAIN)
    submitted = hop.submit(
        "train.py",
        arguments=["--fast"],
        params={"lr": 0.5},
        env={"GREETING": "hello"},
        tags={"kind": "whole"},
        name="first",
        cpus=0.5,
        memory="512M",
        priority=70,
        time_limit=300,
    )
    run = submitted.wait(120)
    assert (run.id, run.phase, run.succeeded, run.exit_code) == (submitted.id, "succeeded", True, 0)
    assert run.params == {"lr": 0.5, "epochs": 3} and run.tags == {"kind": "whole"} and run.label == "first"
    assert run.started_at is not None and run.ended_at is not None
    assert run.created_at <= run.started_at <= run.ended_at
    assert run.summary == {"loss": 0.5} and math.isclose(run.latest_metrics["loss"] or 0.0, 0.5 / 3)
    assert [(point.step, point.value) for point in run.metrics("loss")] == [(0, 0.5), (1, 0.25), (2, 0.5 / 3)]
    assert run.metrics("los") == []
    assert run.logs() == "epoch 0\nepoch 1\nepoch 2\n" and run.logs(tail=1) == "epoch 2\n"
    assert run.logs(stream="stderr") == "hello --fast\n"

    pulled = run.pull(tmp_path / "pulled", parts=["code", "files"])
    assert (pulled / "code" / "train.py").read_text() == TRAIN
    assert (pulled / "files" / "model.txt").read_text() == "0.5" and not (pulled / "logs").exists()
    assert json.loads((pulled / "run.json").read_text())["spec"]["priority"] == 70

    assert hop.get_run("first") == hop.get_run(run.name) == run.refresh() == run
    assert hop.get_run(run.name.rpartition("/")[2]).id == run.id
    assert [result.id for result in hop.runs(tags={"kind": "whole"}, phase="succeeded")] == [run.id]
    assert hop.runs(tags={"kind": "whole"}, phase=["queued", "running"]) == []
    assert run.stop() == run


def test_run_record_is_immutable(code: Path) -> None:
    (code / "long.py").write_text(LONG)
    run = hop.submit("long.py")
    with pytest.raises(FrozenInstanceError):
        run.phase = "succeeded"  # type: ignore[misc]
    with pytest.raises(TimeoutError, match=f"{run.name} is still .* after 0 s"):
        run.wait(0)
    assert not run.ended
    run.stop(grace_s=0)
    ended = run.wait(60)
    assert (ended.phase, ended.succeeded, run.ended) == ("cancelled", False, False)
    assert ended.exit_reason


def test_failed_run_is_returned_with_its_exit_code(code: Path) -> None:
    run = hop.submit("python", arguments=["-c", "raise SystemExit(3)"]).wait(60)
    assert (run.phase, run.exit_code, run.exit_reason) == ("failed", 3, "exit code 3")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"what": "trian.py"}, "trian.py does not exist"),
        ({"cpus": "many"}, "--cpus: `many` is not a number of CPUs"),
        ({"memory": "8"}, "--memory: `8` has no unit"),
        ({"params": {"l r": 1}}, "params: `l r` is not the name of a parameter"),
        ({"params": {"lr": [1]}}, "params: `lr` is of type list"),
        ({"params": {"lr": float("nan")}}, "params: `lr` is not a finite number"),
        ({"env": {"A": 1}}, "env: `A` is of type int"),
        ({"tags": {"a=b": "c"}}, "tags: `a=b` is not the name of a parameter"),
        ({"priority": 101}, "--priority: 101 is not from 0 to 100"),
        ({"params_as": "toml"}, "--params-as: `toml` is no form of parameters"),
        ({"network": "none"}, "network: only containers can be without a network"),
        ({"network": "bridge"}, "--network: `bridge` is not a network"),
        ({"dataset": ["mnist", "mnist:2"]}, "-d: the dataset `mnist` is given twice"),
    ],
)
def test_submit_refuses_what_hop_run_refuses(code: Path, options: dict[str, Any], error: str) -> None:
    (code / "train.py").write_text(TRAIN)
    before = [run.id for run in hop.runs()]
    with pytest.raises(SpecError) as refused:
        hop.submit(options.pop("what", "train.py"), **options)
    assert refused.value.message == error
    assert [run.id for run in hop.runs()] == before


def test_unknown_run_raises_not_found(code: Path) -> None:
    with pytest.raises(NotFound):
        hop.get_run("nobody/nothing/1")


def test_python_api_never_imports_the_command_line() -> None:
    program = (
        "import sys, hopyard\n"
        "assert not [m for m in sys.modules if m.startswith('hopyard.')]\n"
        "hopyard.submit, hopyard.runs, hopyard.get_run, hopyard.Run, hopyard.search, hopyard.study\n"
        "import hopyard.client.resume_study, hopyard.client.pull\n"
        "print(*(m for m in sys.modules if m == 'hopyard.cli' or m.startswith('hopyard.cli.')))"
    )
    text = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert text.stdout.strip() == ""


def test_gang_file_in_another_folder_is_submitted(code: Path) -> None:
    other = code / "gang"
    other.mkdir()
    (other / "hop.yaml").write_text(
        "name: pair\nroles:\n- {name: worker, replicas: 2, command: echo hi, resources: {cpus: 0.5}}\n"
    )
    run = hop.submit("hop.yaml", folder="gang").wait(60)
    assert (run.label, run.phase) == ("pair", "succeeded"), run.exit_reason
    assert [run.logs(rank=rank) for rank in (0, 1)] == ["hi\n", "hi\n"]


def test_files_that_cannot_be_listed_are_not_described(code: Path) -> None:
    """A damaged artifact must not hide how the run ended."""
    client = connect()
    damaged: Any = {"artifact": "0" * 64, "spec": {"roles": [{"replicas": 1}]}}
    assert describe_stored_files(client, damaged) == ""

"""The request that gives a recorded run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.config.recorded_request import recorded_request
from hopyard.config.run_file import read_run_section
from hopyard.config.run_file_text import format_run_file
from hopyard.config.schemas.run_rules import run_spec_from_json
from hopyard.config.yaml_section import read_yaml_text

FILES = (
    "project: p\nroles: [{command: python train.py}]\n",
    """
project: p
name: lab
datasets: ["mnist:3=data"]
params: {lr: 0.1, deep: true, none: null, text: "1"}
env: {A: "1"}
secrets: [TOKEN]
tags: {team: a}
queue: research
priority: 60
preemptible: false
time: 2h
idle: 10m
ports: {web: 8888}
keep: last=3,best=2
preflight: full
roles:
  - {name: a, replicas: {min: 2, max: 4}, command: [python, train.py], resources: {gpus: "A100:2"}}
  - {name: b, command: [python, b.py], resources: {cpus: 0.5}, pool: [x], labels: {rack: r}, essential: false}
""",
)


@pytest.mark.parametrize("text", FILES)
def test_file_of_a_recorded_run_gives_the_same_spec(text: str, tmp_path: Path) -> None:
    def spec_of(file: str) -> dict[str, object]:
        top = read_yaml_text(file.encode(), "hop.yaml")
        request = read_run_section(top, base=tmp_path, folder=tmp_path)
        return request.spec(code=None, git=None, environment={})

    spec = spec_of(text)
    assert spec_of(format_run_file(recorded_request(run_spec_from_json(spec)))) == spec

"""The JSON Schema of hop.yaml accepts what the parser accepts, and refuses what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from hopyard.cli.main import main
from hopyard.config.role_section import RESOURCE_KEYS, ROLE_KEYS
from hopyard.config.run_file import TOP_KEYS, read_run_file
from hopyard.config.run_file_schema import run_file_schema
from hopyard.config.run_file_text import run_file_values
from hopyard.config.run_request import RunRequest
from hopyard.errors import SpecError
from tests.config.test_run_file_text import requests

SCHEMA = run_file_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
# each at the place of each key
VALUES: tuple[Any, ...] = (
    None, True, False, "yes", "maybe", -1, 1, 3, 64, 101, 0.5, 2.25, "0.5", "1.25", "4G", "512 MiB", "4X",
    "G4", "2h", "90m", "1d12h", "3600", "A100:2", "A100|H100:1", "H100", "A100:x", "same:node",
    "spread:rack/2", "near", "far:node", "2-8", "8", "mnist", "mnist:3", "mnist=../data", "mnist:/data",
    "a b", "..", "-x",
    "a,b", "3.11", "word", [], ["word"], [1, "a"], ["a=b"], [None], [["a"]], {}, {"a": 1}, {"a": "b"},
    {"a": True},
    {"a": None}, {"a": [1]}, {"A_B": "x"}, {"a b": "x"}, {"min": 2, "max": 4}, {"min": 2}, {"max": 3},
)  # fmt: skip
TOP, ROLE, RESOURCE = "", "roles.0", "roles.0.resources"
# The text is right, and its meaning is not: a schema cannot state it.
MEANINGS: dict[str, tuple[Any, ...]] = {
    "requirements": tuple(value for value in VALUES if isinstance(value, str)),  # no such file
    "max_output": (1, 3, 64, 101, 0.5, 2.25, -1, "0.5", "1.25", "3600", "8", "3.11"),  # less than 1M
    "max_metrics": (1, 3, 64, 101, 0.5, 2.25, -1, "0.5", "1.25", "3600", "8", "3.11"),
    "idle": ("0.5", "1.25", "8", "3.11"),  # less than 1m
    "memory": (1, 3, 64, 101, 0.5, 2.25, "0.5", "1.25", "3600", "8", "3.11"),  # no unit
    "gpu_memory": (1, 3, 64, 101, 0.5, 2.25, "0.5", "1.25", "3600", "8", "3.11"),
    "gpus": (2.25, "1.25", "3.11"),  # neither whole GPUs nor a share
    "name": ("8", "3600"),  # the number of a run
    "python": ("spread:rack/2", "mnist=../data", "mnist:/data"),  # no such file
    "metric_lines": (["word"], ["a=b"]),  # no metric in it
    "essential": (False,),  # the only role
    "service": (True, "yes"),  # likewise
    "processes": (1, 3, 64, 101),  # without a launcher
}


def place(where: str, key: str, value: Any) -> dict[str, Any]:
    role: dict[str, Any] = {"command": "python train.py"}
    document: dict[str, Any] = {"roles": [role]}
    if where == RESOURCE:
        role["resources"] = {}
    {TOP: document, ROLE: role, RESOURCE: role.get("resources", {})}[where][key] = value
    return document


@pytest.mark.parametrize(
    ("where", "key"),
    [
        *((TOP, key) for key in TOP_KEYS),
        *((ROLE, key) for key in (*ROLE_KEYS, "arguments")),
        *((RESOURCE, key) for key in RESOURCE_KEYS),
    ],
)
def test_schema_and_parser_agree(tmp_path: Path, where: str, key: str) -> None:
    file = tmp_path / "hop.yaml"
    different = []
    for value in VALUES:
        document = place(where, key, value)
        file.write_text(json.dumps(document))
        try:
            read_run_file(file, folder=tmp_path)
            problem = ""
        except SpecError as refused:
            problem = refused.message
        is_valid = VALIDATOR.is_valid(document)
        if is_valid == bool(problem) and not (is_valid and value in MEANINGS.get(key, ())):
            different.append((value, problem or "accepted by the parser"))
    assert different == []


@settings(max_examples=40)
@given(requests())
def test_files_that_are_written_are_valid(request: RunRequest) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(run_file_values(request))] == []


def test_all_keys_are_described() -> None:
    role = SCHEMA["properties"]["roles"]["items"]
    assert set(SCHEMA["properties"]) == set(TOP_KEYS)
    assert set(role["properties"]) == {*ROLE_KEYS, "arguments"}
    assert set(role["properties"]["resources"]["properties"]) == set(RESOURCE_KEYS)
    assert not VALIDATOR.is_valid({"roles": [{"command": "a"}], "role": []}), "an unknown key"


@pytest.mark.parametrize(
    ("document", "is_valid"),
    [
        ({"roles": [{"name": "a"}]}, False),
        ({"launcher": "jax", "roles": [{"command": "a"}, {"name": "b"}]}, False),
        ({"launcher": "mpi", "roles": [{"command": "a"}, {"name": "b"}]}, True),
        ({"roles": [{"command": "a", "launcher": "mpi"}, {"name": "b", "launcher": "mpi"}]}, True),
        ({"roles": [{"command": "a", "launcher": "mpi"}, {"name": "b"}]}, False),
    ],
)
def test_only_roles_that_mpirun_starts_need_no_command(
    tmp_path: Path, document: dict[str, Any], is_valid: bool
) -> None:
    file = tmp_path / "hop.yaml"
    file.write_text(json.dumps(document))
    assert VALIDATOR.is_valid(document) is is_valid
    if not is_valid:
        with pytest.raises(SpecError, match="command: missing"):
            read_run_file(file, folder=tmp_path)
    else:
        assert [role.command for role in read_run_file(file, folder=tmp_path).roles] == [("a",)] * 2


def test_parameter_servers_of_tensorflow_are_services(tmp_path: Path) -> None:
    file = tmp_path / "hop.yaml"
    roles = [{"name": "ps", "command": "a"}, {"name": "worker", "command": "a"}]
    file.write_text(json.dumps({"launcher": "tensorflow", "roles": roles}))
    assert [role.service for role in read_run_file(file, folder=tmp_path).roles] == [True, False]
    file.write_text(json.dumps({"roles": [{"name": "ps", "command": "a", "service": True}]}))
    with pytest.raises(SpecError, match="each role is a service"):
        read_run_file(file, folder=tmp_path)


def test_published_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    published = Path(__file__).parents[2] / "docs" / "reference" / "hop.schema.json"
    assert main(["run", "--print-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA == json.loads(published.read_text())

"""The file from which a script reads its parameters."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from hopyard.config.schemas.run_rules import check_spec, run_spec_from_json
from hopyard.config.yaml_loader import load_yaml
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.param_format import ParamFormat, ParamStyle, ParamValue
from hopyard.domain.resources import Resources
from hopyard.errors import SpecError
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.user_command import write_param_file


def launch(file: str) -> ReplicaLaunch:
    return ReplicaLaunch(
        attempt=AttemptId("r.1"),
        run=RunId("r"),
        run_name="u/p/1",
        rank=0,
        role="main",
        role_rank=0,
        world_size=1,
        command=("python", "main.py"),
        resources=Resources(),
        server_url="",
        token="",
        params={"lr": 0.1, "model.depth": 2},
        param_format=ParamFormat(ParamStyle.FILE, file=file),
    )


def test_file_in_the_working_folder_is_completed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "configs").mkdir(parents=True)
    (work / "configs" / "base.json").write_text('{"lr": 1, "seed": 3}')
    (work / "config.json").symlink_to("configs/base.json")
    for path in ("config.json", "new/deep.json", "configs/base.json"):
        write_param_file(launch(path), work)
    expected = {"lr": 0.1, "model": {"depth": 2}}
    assert json.loads((work / "config.json").read_text()) == {**expected, "seed": 3}
    assert not (work / "config.json").is_symlink()
    assert json.loads((work / "new" / "deep.json").read_text()) == expected


def test_no_file_outside_the_working_folder_is_written(tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    (other / "a.json").write_text("{}")
    (work / "data").symlink_to(other)
    (work / "a.json").symlink_to(other / "a.json")
    for path in ("../other/a.json", str(other / "a.json"), "data/a.json", "data/new.json", "a.json"):
        with pytest.raises(PrepareFailed, match="outside the working folder"):
            write_param_file(launch(path), work)
    assert [(path.name, path.read_text()) for path in other.iterdir()] == [("a.json", "{}")]


def test_entry_that_a_list_lacks_is_an_error_of_the_parameters(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("layers = [64, 32]\n")
    for name in ("layers.9", "layers.0.units", "layers.first"):
        with pytest.raises(PrepareFailed, match=r"cannot be written into config\.toml"):
            write_param_file(replace(launch("config.toml"), params={name: 1}), tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "a.json",
            '{"n": {"ints": [1, 2], "texts": ["a"], "text": ["a"], "empty": [1], "one": [1], '
            '"nested": [[1]], "off": [1]}}',
        ),
        (
            "a.toml",
            'n = {ints = [1, 2], texts = ["a"], text = ["a"], empty = [1], one = [1], nested = [[1]]}\n',
        ),
        (
            "a.yaml",
            "n:\n  ints: [1, 2]\n  texts: [a]  # kept\n  text: [a]\n  empty:\n  - 1\n"
            "  one: [1]\n  nested: [[1]]\n  off: [1]\n",
        ),
    ],
)
def test_setting_that_is_a_list_stays_a_list(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    params: dict[str, ParamValue] = {
        "n.ints": "7, 1e-3",
        "n.texts": "007,true",
        "n.text": True,
        "n.empty": "",
        "n.one": 5,
        "n.nested": "[[1, 2], [3]]",
    }
    if not file.endswith(".toml"):
        params["n.off"] = None
    write_param_file(replace(launch(file), params=params), tmp_path)
    written = (tmp_path / file).read_text()
    values = tomllib.loads(written) if file == "a.toml" else load_yaml(written.encode(), file)
    expected = {
        "ints": [7, 0.001],
        "texts": ["007", "true"],
        "text": ["true"],
        "empty": [],
        "one": [5],
        "nested": [[1, 2], [3]],
    }
    assert values == {"n": expected if file == "a.toml" else {**expected, "off": None}}
    assert ("# kept" in written) is (file == "a.yaml")


def test_open_bracket_is_an_error_of_the_parameters(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("b: [1, 2]\n")
    with pytest.raises(PrepareFailed, match=r"`b` is a list, and `\[7, 8` is none"):
        write_param_file(replace(launch("a.yaml"), params={"b": "[7, 8"}), tmp_path)


@pytest.mark.parametrize("file", ["/etc/a.json", "../a.json"])
def test_request_with_a_file_outside_the_code_is_refused(file: str) -> None:
    spec = {"project": "p", "roles": [{"command": ["x"]}], "param_format": {"style": "file", "file": file}}
    with pytest.raises(SpecError, match="outside the folder"):
        check_spec(run_spec_from_json(spec))

"""Datasets at the paths where a script looks for them."""

from __future__ import annotations

import sys
from pathlib import Path

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import Manifest
from hopyard.domain.param_format import ParamFormat, ParamStyle
from hopyard.domain.run import DatasetRef
from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario
from tests.replica.test_code_data_outputs import with_replica_changes

SCRIPT = """
import json, os, sys
params = json.loads(os.environ["HOPYARD_PARAMS"]), json.load(open("c.json"))
for path in (*sys.argv[1:], *(values["data"] for values in params)):
    print(open(path + "/a.txt").read())
print(open(os.environ["HOPYARD_DATASET_IN_CODE"] + "/a.txt").read(), os.environ["DATA"])
"""


def folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / f"{name}.txt").write_text(text)
    return path


def test_script_finds_datasets_where_it_looks_for_them(run_scenario: RunScenario, tmp_path: Path) -> None:
    mounted = tmp_path / "somewhere" / "mnist"

    async def scenario(fixture: LocalEngineFixture) -> None:
        code = folder(tmp_path / "code", main="code")
        folder(code / "empty")
        tree = fixture.sink.put_tree(code)
        paths = {"in-code": "data/x", "above": "../data", "absolute": str(mounted), "over-empty": "empty"}
        data = {
            name: Digest(fixture.sink.put_tree(folder(tmp_path / name, a=f"in {name}"))) for name in paths
        }
        refs = tuple(DatasetRef(name, 1, data[name], path) for name, path in paths.items())
        launch = await fixture.make_launch("a.1", "", code=tree, env={"DATA": "{dataset:above}"})
        command = ("python", "-c", SCRIPT, *paths.values(), "{dataset:in-code}")
        form = ParamFormat(ParamStyle.FILE, file="c.json")
        changes = {"params": {"data": "{dataset:above}"}, "param_format": form}
        await fixture.engine.launch(with_replica_changes(launch, datasets=refs, command=command, **changes))
        (exit_,) = await fixture.wait_exits("a.1")
        assert exit_.is_success, exit_.reason + fixture.sink.stream("a.1", 0, "stderr").decode()
        *lines, last = fixture.sink.stream("a.1", 0, "stdout").decode().splitlines()
        assert lines == [*(f"in {name}" for name in paths), "in in-code", "in above", "in above"]
        assert last.startswith("in in-code ") and "{" not in last
        outputs = Manifest.decode(fixture.sink.blobs[fixture.sink.artifacts["a.1"]])
        assert [file.path for file in outputs.files] == ["c.json"] and not outputs.links, (
            "the places are no outputs of the run"
        )
        if detect_isolation_mode() is not IsolationMode.MODES:
            assert not any(mounted.iterdir()), "others do not see the dataset there"

    run_scenario(scenario)


def test_dataset_replaces_a_folder_of_the_code(run_scenario: RunScenario, tmp_path: Path) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        code = folder(tmp_path / "code", main="code")
        folder(code / "data" / "set", a="of the code", prepare="of the code")
        ref = DatasetRef("d", 1, Digest(fixture.sink.put_tree(folder(tmp_path / "d", a="one"))), "data/set")
        command = (
            sys.executable,
            "-c",
            "import os; print(os.listdir('data/set'), open('data/set/a.txt').read())",
        )
        launch = await fixture.make_launch("a.1", "print(1)", code=fixture.sink.put_tree(code))
        await fixture.engine.launch(with_replica_changes(launch, datasets=(ref,), command=command))
        (exit_,) = await fixture.wait_exits("a.1")
        assert exit_.is_success, exit_.reason
        assert fixture.sink.stream("a.1", 0, "stdout").decode() == "['a.txt'] one\n"
        assert not fixture.sink.artifacts

    run_scenario(scenario)


def test_dataset_never_replaces_a_file(run_scenario: RunScenario, tmp_path: Path) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        code = folder(tmp_path / "code", main="code")
        ref = DatasetRef("d", 1, Digest(fixture.sink.put_tree(folder(tmp_path / "d", a="one"))), "main.txt")
        launch = await fixture.make_launch("a.1", "print(1)", code=fixture.sink.put_tree(code))
        await fixture.engine.launch(with_replica_changes(launch, datasets=(ref,)))
        (exit_,) = await fixture.wait_exits("a.1")
        assert exit_.reason.startswith("dataset d cannot be placed at `main.txt`: the code")

    run_scenario(scenario)

"""The spec of a run from a hop.yaml and uploaded code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from blake3 import blake3

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, Manifest
from tests.server.api_server import ApiServer, run_scenario

SCRIPT = b"""import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
print(parser.parse_args())
"""
INLINE = b"# /// script\n# dependencies = ['six']\n# ///\nprint(1)\n"


async def upload(api: ApiServer, files: dict[str, bytes]) -> str:
    """Uploads a tree. Returns its manifest."""
    blobs = {Digest(blake3(data).hexdigest()): data for data in files.values()}
    entries = [
        FileEntry(path, len(data), (Digest(blake3(data).hexdigest()),)) for path, data in files.items()
    ]
    encoded = Manifest.build(entries).encode()
    digest = str(blake3(encoded).hexdigest())
    for name, data in {**blobs, digest: encoded}.items():
        await api.request("PUT", f"/blobs/{name}", data)
    return digest


async def compose(api: ApiServer, values: Any, code: str | None = None, **body: Any) -> dict[str, Any]:
    file = values if isinstance(values, str) else json.dumps(values)
    result: dict[str, Any] = await api.request("POST", "/runs/compose", {"file": file, "code": code, **body})
    return result


def test_composed_spec_is_submitted_and_described_again(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        code = await upload(api, {"train.py": SCRIPT, "requirements.txt": b"six\n"})
        file = (
            "project: digits\nqueue: default\ntags: {team: a}\nroles: [{command: python train.py --lr 0.1}]\n"
        )
        composed = await compose(api, file, code)
        spec = composed["spec"]
        assert (spec["code"], spec["params"], spec["project"]) == (code, {"lr": 0.1}, "digits")
        assert spec["param_format"]["style"] == "args"
        assert Path(spec["environment"]["interpreter"]).name.startswith("python")
        run = await api.request("POST", "/runs", {"spec": spec})
        described = await api.request("GET", f"/runs/{run['id']}/yaml")
        assert described["code"] == code and described["values"]["tags"] == {"team": "a"}
        again = await compose(api, described["file"], code, source=run["id"])
        environment, assigned = again["spec"].pop("environment"), again["spec"].pop("priority")
        assert environment["packages"] == spec["environment"]["packages"] and assigned == 50
        others = {key: value for key, value in spec.items() if key not in ("environment", "priority")}
        assert again["spec"] == others
        values = {"requirements": "requirements.txt", "roles": [{"command": "train.py"}]}
        built = await compose(api, values, code)
        stored = built["spec"]["environment"]["requirements"]
        assert await api.request("POST", "/blobs/missing", {"digests": [stored]}) == {"missing": []}
        inline = await upload(api, {"a.py": INLINE})
        from_inline = await compose(api, {"roles": [{"command": "a.py"}]}, inline)
        assert from_inline["spec"]["environment"]["requirements"]

    run_scenario(tmp_path, scenario)


def test_problem_names_the_key_and_what_to_do(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        sdk = b"import hopyard as hop\np = hop.params(lr=0.1)\n"
        code = await upload(api, {"train.py": SCRIPT, "sdk.py": sdk})
        role = {"command": "python train.py"}
        for values, path, text in (
            ({"roles": [{"command": "python trian.py"}]}, "roles.0.command", "trian.py is not in the code"),
            ({"roles": [{**role, "resources": {"gpus": -3}}]}, "roles.0.resources.gpus", "-3"),
            ({"params": {"lrr": 1}, "roles": [role]}, "params.lrr", "no such option"),
            ({"params": {"lr": "a: b"}, "roles": [{"command": "python sdk.py"}]}, "params.lr", "is a float"),
            ({"priority": 900, "roles": [role]}, "priority", "900"),
            ("rolls: []", "", "rolls"),
            ("a: [", "", "not YAML"),
        ):
            problem = (await compose(api, values, code))["problem"]
            assert problem["path"] == path and text in problem["message"], problem
            assert str(tmp_path) not in json.dumps(problem)
        # as `hop run -p`: parameters that only hop.params knows, in a module beside a parser of options
        parts = {"main.py": SCRIPT + b"from model import p\n", "model.py": sdk}
        code = await upload(api, parts)
        for params in ({"lr": 0.3}, {"width": 8}):
            composed = await compose(api, {"params": params, "roles": [{"command": "python main.py"}]}, code)
            assert composed["problem"] is None and composed["spec"]["params"] == params
            await api.request("POST", "/runs/preview", {"spec": composed["spec"]})
        values = {"params": {"lr": "fast"}, "roles": [{"command": "python main.py"}]}
        assert (await compose(api, values, code))["problem"]["path"] == "params.lr"
        lost = await api.request("POST", "/runs/compose", {"file": "{}", "code": "b" * 64}, status=409)
        assert lost["error"]["code"] == "missing_blobs"

    run_scenario(tmp_path, scenario)


def test_code_reads_no_file_of_the_server_and_starts_nothing(tmp_path: Path) -> None:
    secret, mark = tmp_path / "secret.txt", tmp_path / "ran"
    secret.write_text("six  # the token of the server\n")
    program = f"#!{sys.executable}\nopen({str(mark)!r}, 'w')\n".encode()

    async def scenario(api: ApiServer) -> None:
        code = await upload(
            api,
            {
                "train.py": SCRIPT + f"open({str(mark)!r}, 'w')\n".encode(),
                "include.txt": f"-r {secret}\n".encode(),
                "nested.txt": b"-r ../../../../../../../../etc/passwd\n",
                "python": program,
                "setup.py": f"open({str(mark)!r}, 'w')\n".encode(),
                "uv.lock": b"version = 1\n",
                "deep.py": b"x = " + b"(" * 60_000 + b"1" + b")" * 60_000,
            },
        )
        for extra in (
            {"requirements": str(secret)},
            {"requirements": "../secret.txt"},
            {"requirements": "include.txt"},
            {"requirements": "nested.txt"},
            {"requirements": "uv.lock"},
            {"python": "./python"},
        ):
            answer = await compose(api, {**extra, "roles": [{"command": "python train.py"}]}, code)
            assert answer["spec"] is None and answer["problem"], extra
            assert "token of the server" not in json.dumps(answer)
        await api.send(
            "POST", "/runs/compose", {"file": json.dumps({"roles": [{"command": "deep.py"}]}), "code": code}
        )
        usual = await compose(api, {"roles": [{"command": "python train.py"}]}, code)  # it still answers
        assert usual["spec"] and not mark.exists()

    run_scenario(tmp_path, scenario)


def test_search_file_becomes_a_study_with_its_first_trials(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    own = f"open({str(mark)!r}, 'w')\nclass Own:\n    pass\n".encode()
    file = {
        "project": "digits",
        "metric": "val_acc",
        "trials": 3,
        "space": {"lr": {"type": "float", "low": 0.001, "high": 0.1, "log": True}},
        "roles": [{"command": "python train.py"}],
    }

    async def scenario(api: ApiServer) -> None:
        code = await upload(api, {"train.py": SCRIPT, "own.py": own})
        composed = await compose(api, file, code)
        study, spec = composed["study"], composed["spec"]
        assert (study["goal"], study["searcher"], study["concurrent"]) == ("max", "random", 4)
        assert [trial["trial"] for trial in study["first_trials"]] == ["0", "1", "2"]
        assert all(0.001 <= trial["params"]["lr"] <= 0.1 for trial in study["first_trials"])
        assert spec["code"] == spec["study"]["trial"]["code"] == code
        assert composed["values"] == file
        again = await compose(api, composed["file"], code)
        assert again["spec"]["study"]["space"] == spec["study"]["space"]
        preview = await api.request("POST", "/runs/preview", {"spec": spec["study"]["trial"]})
        assert preview["sentence"]
        run = await api.request("POST", "/runs", {"spec": spec})
        assert run["spec"]["study"]["name"] == "search"
        for change, path, text in (
            ({"metric": ""}, "metric", "missing"),
            ({"trials": None}, "trials", "missing"),
            ({"space": {"lrr": [1, 2]}}, "space.lrr", "no such option"),
            ({"space": {"lr": {"type": "float", "low": 2, "high": 1}}}, "space.lr", "larger"),
            ({"searcher": {"name": "asha", "eta": 1}}, "searcher.eta", "out of range"),
            ({"roles": [{"command": "python trian.py"}]}, "roles.0.command", "not in the code"),
        ):
            problem = (await compose(api, {**file, **change}, code))["problem"]
            assert problem["path"] == path and text in problem["message"], problem
        for searcher in ("own.py:Own", "tpe"):  # neither is started by the server
            unknown = await compose(api, {**file, "searcher": searcher}, code)
            assert unknown["study"]["first_trials"] == [], unknown
        assert not mark.exists()

    run_scenario(tmp_path, scenario)

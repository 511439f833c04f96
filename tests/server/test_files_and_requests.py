"""A value that a file of YAML may not have, a request may not have either."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.config.cluster_reservations import read_reservations
from hopyard.config.run_file import read_run_file
from hopyard.config.schemas.run_rules import check_spec, run_spec_from_json
from hopyard.config.search.search_file import read_search_file, search_from_mapping
from hopyard.config.yaml_section import read_yaml
from hopyard.domain.queue import QueueTree
from hopyard.errors import NotFound, SpecError
from tests.server.api_server import NODE, ApiServer, run_scenario

ROLE: dict[str, Any] = {"command": "x"}
SPEC: dict[str, Any] = {"project": "p", "roles": [{"command": ["x"]}]}
ESCAPE, LONG = "a\x1b", "v" * 70_000


def role(**keys: Any) -> dict[str, Any]:
    return {"roles": [{**ROLE, **keys}]}


def role_spec(**fields: Any) -> dict[str, Any]:
    return {"roles": [{"command": ["x"], **fields}]}


def resources(**fields: Any) -> dict[str, Any]:
    return role_spec(resources=fields)


# keys of a file, the path that is refused, and the fields of a request with the same values
REFUSED: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"priority": 101}, "priority", {"priority": 101}),
    ({"priority": True}, "priority", {"priority": True}),
    ({"preemptible": "never"}, "preemptible", {"preemptible": "never"}),
    ({"name": "last"}, "name", {"label": "last"}),
    ({"project": "../x"}, "project", {"project": "../x"}),
    ({"queue": "a/b"}, "queue", {"queue": "a/b"}),
    ({"time": "11000d"}, "time", {"time_limit_s": 11000 * 86400}),
    ({"max_output": "1K"}, "max_output", {"max_output_bytes": 1024}),
    ({"max_output": "10000T"}, "max_output", {"max_output_bytes": 10_000 * 2**40}),
    ({"python": "3.x"}, "python", {"environment": {"python": "3.x"}}),
    ({"topology": f"same:{ESCAPE}"}, "topology", {"topology": {"rule": "same", "level": ESCAPE}}),
    ({"datasets": ["a", "a:2"]}, "datasets.1", {"datasets": [{"name": "a"}, {"name": "a", "version": 2}]}),
    ({"datasets": ["a:2000000000"]}, "datasets.0", {"datasets": [{"name": "a", "version": 2_000_000_000}]}),
    (
        {"datasets": [f"d{at}" for at in range(65)]},
        "datasets",
        {"datasets": [{"name": f"d{at}"} for at in range(65)]},
    ),
    ({"params": {"a": "x\0"}}, "params.a", {"params": {"a": "x\0"}}),
    ({"params": {"a": LONG}}, "params.a", {"params": {"a": LONG}}),
    ({"params": {"a": 2**63}}, "params.a", {"params": {"a": 2**63}}),
    (
        {"params": {f"p{at}": 1 for at in range(1001)}},
        "params",
        {"params": {f"p{at}": 1 for at in range(1001)}},
    ),
    ({"env": {"A": "x\0"}}, "env.A", {"env": {"A": "x\0"}}),
    (
        {"env": {"CUDA_VISIBLE_DEVICES": "1"}},
        "env.CUDA_VISIBLE_DEVICES",
        {"env": {"CUDA_VISIBLE_DEVICES": "1"}},
    ),
    (
        {"datasets": ["a=x", "b=x/y"]},
        "datasets.1",
        {"datasets": [{"name": "a", "path": "x"}, {"name": "b", "path": "x/y"}]},
    ),
    ({"env": {"D": "{dataset:mnits}"}}, "env.D", {"env": {"D": "{dataset:mnits}"}}),
    ({"env": {"HOPYARD_URL": "x"}}, "env.HOPYARD_URL", {"env": {"HOPYARD_URL": "x"}}),
    ({"env": {"A": "x"}, "secrets": ["A"]}, "secrets.0", {"env": {"A": "x"}, "secrets": ["A"]}),
    ({"secrets": ["RANK"]}, "secrets.0", {"secrets": ["RANK"]}),
    ({"secrets": ["a-b"]}, "secrets.0", {"secrets": ["a-b"]}),
    ({"tags": {"a": ESCAPE}}, "tags.a", {"tags": {"a": ESCAPE}}),
    ({"tags": {"a": "v" * 1025}}, "tags.a", {"tags": {"a": "v" * 1025}}),
    (
        {"env": {f"A{at}": "v" * 60_000 for at in range(5)}},
        "env",
        {"env": {f"A{at}": "v" * 60_000 for at in range(5)}},
    ),
    (role(command=["x", LONG]), "roles.0.command", role_spec(command=["x", LONG])),
    (role(command=["x", "a\0"]), "roles.0.command", role_spec(command=["x", "a\0"])),
    (role(command=[""]), "roles.0.command", role_spec(command=[""])),
    (role(replicas=5000), "roles.0.replicas", role_spec(replicas=5000)),
    (role(replicas={"min": 3, "max": 2}), "roles.0.replicas", role_spec(replicas=2, min_replicas=3)),
    (role(essential=False), "roles", role_spec(essential=False)),
    (
        {"roles": [{**ROLE, "name": name, "replicas": 3000} for name in "ab"]},
        "roles",
        {"roles": [{"command": ["x"], "name": name, "replicas": 3000} for name in "ab"]},
    ),
    (
        {"roles": [{**ROLE, "name": f"r{at}"} for at in range(65)]},
        "roles",
        {"roles": [{"command": ["x"], "name": f"r{at}"} for at in range(65)]},
    ),
    ({"roles": [ROLE, ROLE]}, "roles.1.name", {"roles": [{"command": ["x"]}] * 2}),
    (
        role(resources={"gpus": 0.5, "gpu_memory": "2G"}),
        "roles.0.resources.gpu_memory",
        resources(gpu_milli=500, gpu_memory_bytes=2**31),
    ),
    (
        role(resources={"gpus": "|".join(f"m{at}" for at in range(65)) + ":1"}),
        "roles.0.resources.gpus",
        resources(gpus=1, gpu_models=[f"m{at}" for at in range(65)]),
    ),
    (
        role(resources={"extras": {"memory": 1}}),
        "roles.0.resources.extras.memory",
        resources(extras=[["memory", 1]]),
    ),
    (
        role(resources={"extras": {"fpga": 0}}),
        "roles.0.resources.extras.fpga",
        resources(extras=[["fpga", 0]]),
    ),
    (
        role(resources={"extras": {f"e{at:02}": 1 for at in range(65)}}),
        "roles.0.resources.extras",
        resources(extras=[[f"e{at:02}", 1] for at in range(65)]),
    ),
    (role(pool="a/b"), "roles.0.pool", role_spec(where={"pools": ["a/b"]})),
    (
        role(pool=[f"p{at}" for at in range(65)]),
        "roles.0.pool",
        role_spec(where={"pools": [f"p{at}" for at in range(65)]}),
    ),
    (role(labels={"rack": ESCAPE}), "roles.0.labels.rack", role_spec(where={"labels": [["rack", ESCAPE]]})),
    (role(labels={ESCAPE: "a"}), "roles.0.labels.", role_spec(where={"labels": [[ESCAPE, "a"]]})),
    (
        role(topology=f"same:{ESCAPE}"),
        "roles.0.topology",
        role_spec(topology={"rule": "same", "level": ESCAPE}),
    ),
]


@pytest.mark.parametrize(("keys", "path", "_fields"), REFUSED)
def test_files_are_refused_with_the_path(
    tmp_path: Path, keys: dict[str, Any], path: str, _fields: dict[str, Any]
) -> None:
    file = tmp_path / "hop.yaml"
    file.write_text(yaml.safe_dump({"roles": [ROLE], **keys}))
    with pytest.raises(SpecError) as refused:
        read_run_file(file, folder=tmp_path)
    assert refused.value.message.startswith(f"{file}: {path}"), refused.value.message
    assert "_bytes" not in refused.value.message


def test_requests_with_the_same_values_are_refused(tmp_path: Path) -> None:
    async def scenario(server: ApiServer) -> None:
        for _, path, fields in REFUSED:
            answer = await server.send("POST", "/runs", {"spec": {**SPEC, **fields}})
            assert answer.status_code in (400, 422), (path, answer.text)
            assert answer.json()["error"]["code"] == "bad_spec", path

    run_scenario(tmp_path, scenario, loops=False)


TRIALS: dict[str, Any] = {
    "metric": "acc",
    "trials": 3,
    "space": {"x": [1, 2]},
    "command": "x",
    "params": {"classes": 10},
}
MOP: dict[str, Any] = {
    "metric": "acc",
    "trials": 3,
    "space": {"x": [1, 2]},
    "trainable": "package:Model",
    "workers": 2,
    "dataset": "digits",
}
CHOICE: dict[str, Any] = {"name": "x", "kind": "choice", "values": [1, 2], "conditions": []}
RANGE: dict[str, Any] = {"name": "x", "kind": "uniform", "low": 0.0, "high": 1.0, "conditions": []}

# a search file, the keys that change, the path that is refused, and the same values in the study of a request
REFUSED_STUDIES: list[tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = [
    (TRIALS, {"metric": "acc\x1b"}, "metric", {"metric": "acc\x1b"}),
    (TRIALS, {"metric": " acc"}, "metric", {"metric": " acc"}),
    (TRIALS, {"trials": 0}, "trials", {"trials": 0}),
    (TRIALS, {"trials": None}, "trials", {"trials": None}),
    (TRIALS, {"concurrent": 5000}, "concurrent", {"concurrent": 5000}),
    (TRIALS, {"epochs": 10**7}, "epochs", {"max_epochs": 10**7}),
    (TRIALS, {"max_epochs": 10**7}, "max_epochs", {"max_epochs": 10**7}),
    (TRIALS, {"seed": -1}, "seed", {"seed": -1}),
    (TRIALS, {"mlflow": "localhost"}, "mlflow", {"mlflow": "localhost"}),
    (TRIALS, {"tensorboard": 1}, "tensorboard", {"tensorboard": 1}),
    (TRIALS, {"searcher": "tpa"}, "searcher.name", {"searcher": {"name": "tpa"}}),
    (
        TRIALS,
        {"searcher": {"name": "asha", "etaa": 3}},
        "searcher.etaa",
        {"searcher": {"name": "asha", "options": {"etaa": 3}}},
    ),
    (TRIALS, {"searcher": "asha", "epochs": 1}, "epochs", {"searcher": {"name": "asha"}, "max_epochs": 1}),
    (TRIALS, {"space": {"x": []}}, "space.x", {"space": [{**CHOICE, "values": []}]}),
    (TRIALS, {"space": {"x": [1, True]}}, "space.x.1", {"space": [{**CHOICE, "values": [1, True]}]}),
    (TRIALS, {"space": {"x": ["a\0"]}}, "space.x.0", {"space": [{**CHOICE, "values": ["a\0"]}]}),
    (TRIALS, {"space": {"x": "uniform(1, 0)"}}, "space.x", {"space": [{**RANGE, "low": 1.0, "high": 0.0}]}),
    (TRIALS, {"space": {"x": "loguniform(0, 1)"}}, "space.x", {"space": [{**RANGE, "log": True}]}),
    (TRIALS, {"space": {"x": "quniform(0, 1, 2)"}}, "space.x", {"space": [{**RANGE, "step": 2.0}]}),
    (
        TRIALS,
        {"space": {"x": {"uniform": [0, 1], "points": 200_000}}},
        "space.x",
        {"space": [{**RANGE, "points": 200_000}]},
    ),
    (
        TRIALS,
        {"space": {"x": list(range(100_001))}},
        "space.x",
        {"space": [{**CHOICE, "values": list(range(100_001))}]},
    ),
    (TRIALS, {"space": {"epochs": [1, 2]}}, "space.epochs", {"space": [{**CHOICE, "name": "epochs"}]}),
    (TRIALS, {"space": {"classes": [1, 2]}}, "params.classes", {"space": [{**CHOICE, "name": "classes"}]}),
    (MOP, {"space": {"trial": [1, 2]}}, "space.trial", {"space": [{**CHOICE, "name": "trial"}]}),
    (MOP, {"workers": 4096}, "workers", {"mop.workers": 5000}),
    (MOP, {"threads": 5000}, "threads", {"mop.threads": 5000}),
    (MOP, {"unit_timeout": "0.5s"}, "unit_timeout", {"mop.unit_timeout_s": 0.5}),
    (MOP, {"partitions": {"parts": 1}}, "partitions.parts", {"mop.partitions.parts": 1}),
    (MOP, {"partitions": {"validation": 1}}, "partitions.validation", {"mop.partitions.validation": 1}),
    (MOP, {"partitions": {"format": "parket"}}, "partitions.format", {"mop.partitions.format": "parket"}),
    (MOP, {"partitions": {"stratify": ESCAPE}}, "partitions.stratify", {"mop.partitions.stratify": ESCAPE}),
    (
        MOP,
        {"partitions": {"columns": ["a", "a"]}},
        "partitions.columns.1",
        {"mop.partitions.columns": ["a", "a"]},
    ),
    (
        MOP,
        {"partitions": {"validation": 0.2, "validation_from": "held"}},
        "partitions.validation_from",
        {"mop.partitions.validation": 0.2, "mop.partitions.validation_from": "held"},
    ),
    (MOP, {"resources": {"extras": {"cpu": 1}}}, "resources.extras.cpu", {}),
    (TRIALS, {"labels": {"rack": ESCAPE}}, "labels.rack", {"trial.roles.0.where.labels": [["rack", ESCAPE]]}),
    (
        TRIALS,
        {"env": {"CUDA_VISIBLE_DEVICES": "0"}},
        "env.CUDA_VISIBLE_DEVICES",
        {"trial.env": {"CUDA_VISIBLE_DEVICES": "0"}},
    ),
]


def study_spec(keys: dict[str, Any], folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Returns the spec of a search file as JSON, with other values at these paths of its study."""
    request = search_from_mapping(keys, folder)
    spec: dict[str, Any] = json.loads(json.dumps(request.spec(code=None, git=None, environment={})))
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = spec["study"]
        for key in parents:
            place = place[int(key) if isinstance(place, list) else key]
        place[last] = value
    return spec


@pytest.mark.parametrize(("base", "keys", "path", "_changes"), REFUSED_STUDIES)
def test_search_files_are_refused_with_the_path(
    tmp_path: Path, base: dict[str, Any], keys: dict[str, Any], path: str, _changes: dict[str, Any]
) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump({**base, **keys}))
    with pytest.raises(SpecError) as refused:
        read_search_file(file, tmp_path)
    assert refused.value.message.startswith(f"{file}: {path}"), refused.value.message


def test_studies_with_the_same_values_are_refused(tmp_path: Path) -> None:
    async def scenario(server: ApiServer) -> None:
        await server.push_dataset("digits")
        for base in (TRIALS, MOP):
            await server.request("POST", "/runs", {"spec": study_spec(base, tmp_path, {})}, status=201)
        for base, _, path, changes in REFUSED_STUDIES:
            if changes:
                answer = await server.send("POST", "/runs", {"spec": study_spec(base, tmp_path, changes)})
                assert answer.status_code in (400, 422), (path, answer.text)
                assert answer.json()["error"]["code"] == "bad_spec", path

    run_scenario(tmp_path, scenario, loops=False)


WHOLE: dict[str, Any] = {"name": "exam", "from": "+1h", "for": "2h", "users": ["alice"]}
PIECES: dict[str, Any] = {**WHOLE, "resources": {"gpus": 1}}

# a reservation of a cluster file, the path that is refused, and the fields of a request with the same values
REFUSED_RESERVATIONS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({**WHOLE, "name": "a/b", "nodes": ["box"]}, "name", {"name": "a/b", "nodes": ["box"]}),
    ({**WHOLE, "users": ["a/b"], "nodes": ["box"]}, "users.0", {"users": ["a/b"], "nodes": ["box"]}),
    (
        {**WHOLE, "users": [f"u{at}" for at in range(1001)], "nodes": ["box"]},
        "users",
        {"users": [f"u{at}" for at in range(1001)], "nodes": ["box"]},
    ),
    ({**WHOLE, "queue": "a/b", "nodes": ["box"]}, "queue", {"queue": "a/b", "nodes": ["box"]}),
    ({**WHOLE, "nodes": ["bx"]}, "nodes.0", {"nodes": ["bx"]}),
    ({**WHOLE, "nodes": ["box"], "for": "30s"}, "for", {"nodes": ["box"], "hours": 0.001}),
    ({**WHOLE, "nodes": ["box"], "every": "1h"}, "every", {"nodes": ["box"], "every_s": 3600.0}),
    ({**PIECES, "count": 5000}, "count", {"resources": {"gpus": 1}, "count": 5000}),
    (
        {**PIECES, "resources": {"gpus": 0.5, "gpu_memory": "2G"}},
        "resources.gpu_memory",
        {"resources": {"gpu_milli": 500, "gpu_memory_bytes": 2**31}},
    ),
    (
        {**PIECES, "resources": {"gpus": "|".join(f"m{at}" for at in range(65)) + ":1"}},
        "resources.gpus",
        {"resources": {"gpus": 1, "gpu_models": [f"m{at}" for at in range(65)]}},
    ),
    (
        {**PIECES, "resources": {"extras": {"cpu": 1}}},
        "resources.extras.cpu",
        {"resources": {"extras": [["cpu", 1]]}},
    ),
    (
        {**PIECES, "labels": {"rack": ESCAPE}},
        "labels.rack",
        {"resources": {"gpus": 1}, "where": {"labels": [["rack", ESCAPE]]}},
    ),
]


@pytest.mark.parametrize(("keys", "path", "_fields"), REFUSED_RESERVATIONS)
def test_reservations_of_files_are_refused_with_the_path(
    tmp_path: Path, keys: dict[str, Any], path: str, _fields: dict[str, Any]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({"reservations": [keys]}))
    with pytest.raises((SpecError, NotFound)) as refused:
        for section in read_reservations(read_yaml(file)):
            section.reservation(datetime.now(UTC), nodes=[NODE], queues=QueueTree({}))
    assert refused.value.message.startswith(f"{file}: reservations.0.{path}"), refused.value.message


def test_reservations_with_the_same_values_are_refused(tmp_path: Path) -> None:
    async def scenario(server: ApiServer) -> None:
        begin = datetime.now(UTC) + timedelta(hours=1)
        for _, path, fields in REFUSED_RESERVATIONS:
            end = begin + timedelta(hours=fields.get("hours", 2))
            times = {"start_at": begin.isoformat(), "end_at": end.isoformat()}
            body = {"name": "exam", "users": ["alice"], **times, **fields}
            body.pop("hours", None)
            answer = await server.send("POST", "/reservations", body)
            assert answer.status_code in (400, 404, 422), (path, answer.text)

    run_scenario(tmp_path, scenario)


NAMES = st.sampled_from(["a", "b-1", "A.b", "last", "7", "a/b", "", "x" * 129, ESCAPE, "RANK", "é"])
TEXTS = st.sampled_from(["", "x", "a b", ESCAPE, "\0", "zero\u200bwidth", "1", "yes"]) | st.text(max_size=3)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 64, 100, 101, 4096, 4097, 10**9 + 1, 2**63, 0.5, 1.5, float("inf")])
SCALARS = NAMES | TEXTS | NUMBERS | st.booleans() | st.none()
AMOUNTS = st.sampled_from(["1G", "1K", "10000T", "0", "2h", "20000d", "A100:2", "a|b:1", 1, 0.5, 2.5, -1])


def mappings(keys: Any, values: Any) -> Any:
    return st.dictionaries(keys, values, max_size=2)


ROLES = st.fixed_dictionaries(
    {"command": st.just("x") | st.lists(SCALARS, max_size=2)},
    optional={
        "name": NAMES,
        "replicas": SCALARS | st.fixed_dictionaries({"min": NUMBERS, "max": NUMBERS}),
        "resources": st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("cpus", "memory", "gpus", "gpu_memory"), AMOUNTS),
                "extras": mappings(NAMES, NUMBERS),
            },
        ),
        "pool": NAMES | st.lists(NAMES, max_size=2),
        "labels": mappings(NAMES, TEXTS),
        "topology": st.sampled_from(["same:node", "near:rack/4", "near:rack/0", "same: ", f"same:{ESCAPE}"]),
        "essential": st.booleans(),
    },
)
FILES = st.fixed_dictionaries(
    {"roles": st.lists(ROLES, min_size=1, max_size=3)},
    optional={
        **dict.fromkeys(("name", "project", "queue"), NAMES),
        **dict.fromkeys(("priority", "preemptible"), SCALARS),
        **dict.fromkeys(("time", "max_output", "max_metrics"), AMOUNTS),
        **dict.fromkeys(("params", "env", "tags"), mappings(NAMES, SCALARS)),
        "secrets": st.lists(NAMES, max_size=2),
        "datasets": st.lists(
            st.sampled_from(["a", "b:2", "a:0", "c:newest", "c:9999999999", "../x"]), max_size=3
        ),
        "python": st.sampled_from(["3.11", "3", "3.11.4", "3.x", "3.1.2.3", ""]),
    },
)


@settings(max_examples=300, deadline=None)
@given(FILES)
def test_files_that_are_accepted_are_valid_requests(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(yaml.safe_dump(content, allow_unicode=False))
    try:
        request = read_run_file(file, folder=file.parent)
    except SpecError as refused:
        assert refused.message.startswith(f"{file}: ")
        return
    body = json.loads(json.dumps(request.spec(code=None, git=None, environment={"python": request.python})))
    check_spec(run_spec_from_json(body))

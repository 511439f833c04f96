"""`hop.yaml`: a run, or a gang of several roles, described in a file.

```yaml
name: ddp                       # all keys but `roles` are optional, and the command line goes before the file
project: mnist
datasets: [mnist, labels:3]
params: {lr: 0.1}
env: {NCCL_DEBUG: INFO}
secrets: [HF_TOKEN]             # names: `hop secret set HF_TOKEN` has kept the values
tags: {team: vision}
requirements: requirements.txt  # relative to this file
python: "3.11"
queue: research
priority: 50
preemptible: false              # never asked to make room
topology: near:rack             # of all replicas together
time: 2h
roles:
  - name: worker
    replicas: 2                              # or {min: 2, max: 8}: as many as fit, resumed with another size
    command: python train.py --epochs 3      # a text, split as a shell would; or a list
    # gpus: 0.5, or gpu_memory: 20G, is a part of one
    resources: {cpus: 2, memory: 4G, gpus: A100|H100:1, extras: {fpga: 1}}
    pool: [fast, slow]
    labels: {rack: a}                          # only nodes with these
    topology: same:node
    essential: false                           # the gang goes on without it, and ends with those that are
```
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hopyard.config import asks, units
from hopyard.config.params import Value, check_key, check_variable
from hopyard.config.reader import Section, read_yaml, shown
from hopyard.config.rolefile import read_roles
from hopyard.config.runspec import RoleRequest, RunRequest, parse_dataset, parse_kept, project_of
from hopyard.config.values import read_flag, read_name, read_param
from hopyard.domain.ids import check_label

RUN_KEYS = (
    "name",
    "project",
    "datasets",
    "params",
    "env",
    "secrets",
    "tags",
    "requirements",
    "python",
    "queue",
    "priority",
    "preemptible",
    "topology",
    "time",
    "max_output",
    "max_metrics",
)
TOP_KEYS = (*RUN_KEYS, "roles")


def read_runfile(file: Path, *, folder: Path) -> RunRequest:
    """The run that `file` describes; `folder` is the code's and names the project where the file does not.
    Raises SpecError."""
    top = read_yaml(file).only(*TOP_KEYS)
    return read_request(top, read_roles(top), base=file.parent, folder=folder)


def read_request(top: Section, roles: tuple[RoleRequest, ...], *, base: Path, folder: Path) -> RunRequest:
    """What the keys RUN_KEYS of `top` say of a run with these roles; paths in it count from `base`.
    Raises SpecError."""
    return RunRequest(
        roles=roles,
        project=read_name(top, "project") or project_of(folder),
        label=top.checked("name", lambda: check_label(read_name(top, "name"), what="name")),
        datasets=_datasets(top),
        params=_params(top.section("params")),
        env=_texts(top.section("env"), variable=True),
        secrets=_secrets(top),
        tags=_texts(top.section("tags"), variable=False),
        queue=read_name(top, "queue") or None,
        priority=top.whole("priority", 0, low=0, high=100) if top.has("priority") else None,
        preemptible=read_flag(top, "preemptible", default=True),
        topology=top.amount("topology", asks.parse_topology),
        time_limit_s=top.amount("time", units.parse_time),
        max_output_bytes=top.amount("max_output", parse_kept),
        max_metrics_bytes=top.amount("max_metrics", parse_kept),
        requirements=_requirements(top, base),
        python=top.text("python"),
    )


def _datasets(top: Section) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for i, value in top.items("datasets"):
        where = f"datasets.{i}"
        if not isinstance(value, str):
            raise top.fail(
                where, f"{shown(value)} is not a dataset", "a dataset is written `mnist` or `mnist:3`"
            )
        name, version = top.checked(where, lambda text=value: parse_dataset(text, what="datasets"))  # type: ignore[misc]
        if name in found:
            raise top.fail(
                where, f"the dataset `{name}` is named twice", "a run uses one version of a dataset"
            )
        found[name] = version
    return tuple(found.items())


def _params(given: Section) -> Mapping[str, Value]:
    return {
        given.checked(key, lambda k=key: check_key(k, what="params")): read_param(given, key)  # type: ignore[misc]
        for key in given.values
    }


def _texts(given: Section, *, variable: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in given.values.items():
        given.checked(
            key,
            lambda k=key: check_variable(k, what="env") if variable else check_key(k, what="tags"),  # type: ignore[misc]
        )
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise given.fail(key, f"{shown(value)} is not a text", f'write it in quotes: "{value}"')
        found[key] = str(value)
    return found


def _secrets(top: Section) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for i, value in top.items("secrets"):
        if not isinstance(value, str):
            raise top.fail(
                f"secrets.{i}",
                f"{shown(value)} is not the name of a secret",
                "names only; the value comes from `hop secret set NAME`",
            )
        found[top.checked(f"secrets.{i}", lambda name=value: check_variable(name, what="secrets"))] = None  # type: ignore[misc]
    return tuple(found)


def _requirements(top: Section, base: Path) -> Path | None:
    text = top.text("requirements")
    if not text:
        return None
    path = base / text
    if not path.is_file():
        raise top.fail(
            "requirements", f"there is no file {path}", "the path is relative to the folder of this file"
        )
    return path

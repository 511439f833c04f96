"""`hop.yaml`: a run, or a gang of several roles, described in a file.

```yaml
name: ddp                       # all keys but `roles` are optional, and the command line goes before the file
project: mnist
datasets: [mnist, labels:3, images=../data]   # after `=` or `:/`: where the script looks for it
checkpoints: ["model-*.pt"]     # files of the working folder that the next attempt begins with
params: {lr: 0.1}
params_as: args                 # how the script takes them; by default, as the script shows
env: {NCCL_DEBUG: INFO}
secrets: [HF_TOKEN]             # names: `hop secret set HF_TOKEN` stores the value
tags: {team: vision}
requirements: requirements.txt  # relative to this file
# image: python:3.12-slim       # instead of requirements: each replica runs in a container
# container: true               # with requirements: in a container of an image that has them
# network: none                 # replicas in containers reach only each other
ports: [8888]                   # or {web: 8888}: at which the scripts serve
restart: never                  # of roles without their own
on_end: [lab, {to: alice@lab.org, when: [failed]}]       # is notified of the end, and of alerts
python: "3.11"                  # or the path of an interpreter, relative to this file
queue: research
priority: 50
preemptible: false              # never preempted
topology: near:rack             # of all replicas together
time: 2h
preflight: full                 # off, node, pairs (the default) or full: the checks before the scripts start
evaluator:                      # a run of its own that evaluates the checkpoints
  command: python evaluate.py
  newest: true                  # skips checkpoints when a newer one is complete
roles:
  - name: worker
    replicas: 2                              # or {min: 2, max: 8}: as many as fit, resumed with another size
    command: python train.py --epochs 3      # a text, split as in a shell, or a list
    arguments: [--lr, "{lr}"]                # added to the command; `{lr}` is a parameter
    # gpus: 0.5, or gpu_memory: 20G, is a part of one
    resources: {cpus: 2, memory: 4G, gpus: A100|H100:1, extras: {fpga: 1}}
    pool: [fast, slow]
    labels: {rack: a}                          # only nodes with these labels
    topology: same:node
    private_folders: true                      # a working folder for each replica, none shared
    restart: {policy: on-failure, limit: 3, window: 1h, backoff: 5s}   # or only the policy: on-failure
    launcher: torchrun                         # or none, mpi, tensorflow, jax; above `roles` for all of them
    processes: 4                               # that it starts in each replica; by default one per GPU
    service: true                              # ended after the others, as parameter servers are
    essential: false                           # the gang runs on without it, until its other replicas end
```
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from hopyard.config import resource_requests, units
from hopyard.config.key_values import Value, check_key, check_variable, split_key_mark
from hopyard.config.requirements_path import parse_requirements_path
from hopyard.config.role_section import ROLE_KEYS, read_evaluator, read_roles
from hopyard.config.run_request import (
    DatasetRequest,
    RoleRequest,
    RunRequest,
    default_project,
    parse_idle,
    parse_mounted_dataset,
    parse_stream_limit,
)
from hopyard.config.schemas.runs import SpecIn
from hopyard.config.section_values import read_field, read_flag, read_name, read_param
from hopyard.config.spec_keys import check_file_spec
from hopyard.config.yaml_section import YamlSection, as_section, format_given, read_yaml
from hopyard.domain.checkpoint_retention import RetentionRule, parse_retention, read_retention
from hopyard.domain.ids import check_label
from hopyard.domain.metric_line import check_metric_lines
from hopyard.domain.notification import (
    NotifyTarget,
    check_target,
    check_targets,
    parse_events,
    parse_target,
)
from hopyard.domain.preflight import Preflight
from hopyard.domain.resume_arguments import check_resume_arguments
from hopyard.domain.run_port import MAX_PORT_NUMBER, parse_ports
from hopyard.errors import SpecError

RUN_KEYS = (
    "name",
    "project",
    "datasets",
    "params",
    "params_as",
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
    "idle",
    "max_output",
    "max_metrics",
    "checkpoints",
    "outputs",
    "metric_lines",
    "ports",
    "on_end",
    "resume_args",
    "keep",
    "preflight",
)
TOP_KEYS = (*RUN_KEYS, "restart", "launcher", "image", "container", "network", "evaluator", "roles")


def read_run_file(file: Path, *, folder: Path) -> RunRequest:
    """Returns the run that `file` describes. `folder` is the folder of the code, and names the project if the
    file does not. Raises SpecError."""
    return read_run_section(read_yaml(file), base=file.parent, folder=folder)


def read_run_section(top: YamlSection, *, base: Path, folder: Path) -> RunRequest:
    """Returns the run that the text of a file describes. Paths in it are relative to `base`. folder: as in
    `read_run_file`. Raises SpecError."""
    _check_keys(top)
    request = read_request(top, read_roles(top), base=base, folder=folder)
    request = replace(
        request,
        evaluator=read_evaluator(top),
        container=read_flag(top, "container", default=False),
        network=read_field(top, "network", SpecIn).value,
    )
    environment = {"python": request.python, "container": request.container}
    check_file_spec(top, request.spec(code=None, git=None, environment=environment))
    return request


def _check_keys(top: YamlSection) -> YamlSection:
    """Returns the same section. Raises SpecError for a key that is not one of the file."""
    of_roles = next((key for key in top.values if key in ROLE_KEYS and key not in TOP_KEYS), None)
    if of_roles is not None:
        hint = f"write it in a role: `roles: [{{{of_roles}: …}}]`"
        raise SpecError(f"{top.file}: the key `{of_roles}` belongs to a role", hints=(hint,))
    return top.check_keys(*TOP_KEYS)


def read_request(top: YamlSection, roles: tuple[RoleRequest, ...], *, base: Path, folder: Path) -> RunRequest:
    """Returns the request that the keys RUN_KEYS of `top` describe, with these roles. Paths in it are
    relative to `base`. Raises SpecError."""
    return RunRequest(
        roles=roles,
        project=read_name(top, "project") or default_project(folder),
        label=top.parsed("name", lambda: check_label(read_name(top, "name"), subject="name")),
        datasets=_read_datasets(top),
        params=_read_params(top.section("params")),
        params_as=top.text("params_as"),
        env=_read_texts(top.section("env"), variable=True),
        secrets=_read_secrets(top),
        tags=_read_texts(top.section("tags"), variable=False),
        queue=read_name(top, "queue") or None,
        priority=read_field(top, "priority", SpecIn),
        preemptible=read_field(top, "preemptible", SpecIn),
        topology=top.amount("topology", resource_requests.parse_topology),
        time_limit_s=top.amount("time", units.parse_time),
        idle_s=top.amount("idle", parse_idle),
        max_output_bytes=top.amount("max_output", parse_stream_limit),
        max_metrics_bytes=top.amount("max_metrics", parse_stream_limit),
        outputs=_read_outputs(top),
        metric_lines=_read_metric_lines(top),
        ports=_read_ports(top),
        on_end=_read_targets(top),
        resume_arguments=_read_resume_arguments(top),
        retention=_read_retention(top),
        preflight=_read_preflight(top),
        requirements=_read_requirements(top, base),
        python="" if "/" in top.text("python") else top.text("python"),
        interpreter=_read_interpreter(top, base),
        checkpoint_files=_read_patterns(top),
    )


def _read_preflight(top: YamlSection) -> str:
    text = top.text("preflight")
    if text and text not in list(Preflight):
        hint = f"use one of {', '.join(Preflight)}"
        raise top.error("preflight", f"{top.given('preflight')} is not a set of checks", hint)
    return text


def _read_datasets(top: YamlSection) -> tuple[DatasetRequest, ...]:
    datasets: list[DatasetRequest] = []
    for i, value in top.items("datasets"):
        path = f"datasets.{i}"
        if not isinstance(value, str):
            raise top.error(
                path, f"{format_given(value)} is not a dataset", "a dataset is written `mnist` or `mnist:3`"
            )
        datasets.append(top.parsed(path, lambda text=value: parse_mounted_dataset(text, what="datasets")))  # type: ignore[misc]
    return tuple(datasets)


def _read_patterns(top: YamlSection) -> tuple[str, ...]:
    value = top.values.get("checkpoints")
    texts = (
        [("checkpoints", value)]
        if isinstance(value, str)
        else [(f"checkpoints.{i}", text) for i, text in top.items("checkpoints")]
    )
    for path, text in texts:
        if not isinstance(text, str) or not text:
            raise top.error(
                path,
                f"{format_given(text)} is not a pattern of file names",
                "for example `checkpoints: [ckpt.pt, out/*.bin]`",
            )
    return tuple(str(text) for _, text in texts)


def _read_params(section: YamlSection) -> Mapping[str, Value]:
    return {_read_param_name(section, key): read_param(section, key) for key in section.values}


def _read_param_name(section: YamlSection, key: str) -> str:
    """Returns the name of a parameter, with the mark of a key that Hydra adds. Raises SpecError."""
    section.parsed(key, lambda: check_key(split_key_mark(key)[1], what="params"))
    return key


def _read_texts(section: YamlSection, *, variable: bool) -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, value in section.values.items():
        section.parsed(
            key,
            lambda k=key: check_variable(k, what="env") if variable else check_key(k, what="tags"),  # type: ignore[misc]
        )
        source = section.source(key)
        if value is None:
            raise section.error(
                key,
                "it has no value",
                f'write `{key}: ""` for an empty text'
                + (f', `{key}: "{source}"` for the word' if source else ""),
                "remove the line where a run needs nothing",
            )
        if source is None and (isinstance(value, bool) or not isinstance(value, (str, int))):
            raise section.error(key, f"{section.given(key)} is not a text", section.text_hint(key))
        texts[key] = str(value) if source is None else source  # as typed: 0755, 12:30, yes
    return texts


def _read_secrets(top: YamlSection) -> tuple[str, ...]:
    secrets: dict[str, None] = {}
    for i, value in top.items("secrets"):
        if not isinstance(value, str):
            raise top.error(
                f"secrets.{i}",
                f"{format_given(value)} is not the name of a secret",
                "give only the name; `hop secret set NAME` stores the value",
            )
        name = top.parsed(
            f"secrets.{i}",
            lambda name=value: check_variable(name, what="secrets", in_gang=True),  # type: ignore[misc]
        )
        secrets[name] = None
    return tuple(secrets)


def _read_metric_lines(top: YamlSection) -> tuple[str, ...]:
    lines: list[str] = []
    for i, value in top.items("metric_lines"):
        key = f"metric_lines.{i}"
        if not isinstance(value, str) or not value:
            raise top.error(
                key,
                f"{format_given(value)} is not a text",
                "write each line in quotes: metric_lines: ['epoch {step}: val loss {val_loss}']",
            )
        lines += top.parsed(key, partial(check_metric_lines, (value,), what=key))
    return tuple(lines)


def _read_ports(top: YamlSection) -> dict[str, int]:
    value = top.values.get("ports")
    if isinstance(value, dict):
        section = top.section("ports")
        return {name: section.integer(name, 0, low=1, high=MAX_PORT_NUMBER) for name in section.values}
    texts = [str(text) for _, text in top.items("ports")]
    return top.parsed("ports", partial(parse_ports, texts, what="ports"))


def _read_resume_arguments(top: YamlSection) -> tuple[str, ...]:
    value = top.values.get("resume_args")
    texts = [("resume_args", value)] if isinstance(value, str) else []
    texts = texts or [(f"resume_args.{i}", text) for i, text in top.items("resume_args")]
    for key, text in texts:
        if not isinstance(text, str) or not text:
            raise top.error(
                key,
                f"{format_given(text)} is not a text",
                "for example `resume_args: --resume {checkpoint}`",
            )
        top.parsed(key, partial(check_resume_arguments, (text,), what=key))
    return tuple(text for _, text in texts)


def _read_retention(top: YamlSection) -> RetentionRule | None:
    value = top.values.get("keep")
    if value is None:
        return None
    if isinstance(value, dict):
        return top.parsed("keep", lambda: read_retention({str(k): v for k, v in value.items()}, what="keep"))
    if not isinstance(value, str):
        raise top.error(
            "keep", f"{format_given(value)} is not a rule", "for example `keep: last=3,best=2,every=10`"
        )
    return top.parsed("keep", partial(parse_retention, value, what="keep"))


def _read_outputs(top: YamlSection) -> tuple[str, ...]:
    outputs: list[str] = []
    for i, value in top.items("outputs"):
        if not isinstance(value, str) or not value:
            raise top.error(
                f"outputs.{i}",
                f"{format_given(value)} is not a pattern of files",
                'give globs of files in the run\'s folder: outputs: ["*.pt", "!tmp"]',
            )
        outputs.append(value)
    return tuple(outputs)


def _read_interpreter(top: YamlSection, base: Path) -> str:
    text = top.text("python")
    if "/" not in text:
        return ""
    path = (base / Path(text).expanduser()).absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise top.error(
            "python",
            f"{path} is not an interpreter",
            "give the path of a python program, relative to the folder of this file, or a version",
        )
    return str(path)


def _read_targets(top: YamlSection) -> tuple[NotifyTarget, ...]:
    value = top.values.get("on_end")
    if isinstance(value, str):
        return (top.parsed("on_end", partial(parse_target, value, what="on_end")),)
    targets: list[NotifyTarget] = []
    for index, item in top.items("on_end"):
        path = f"on_end.{index}"
        if isinstance(item, str):
            targets.append(top.parsed(path, partial(parse_target, item, what=path)))
            continue
        section = as_section(top.file, path, item).check_keys("to", "when")
        when = section.values.get("when") or []
        words = [when] if isinstance(when, str) else [str(word) for _, word in section.items("when")]
        events = section.parsed("when", partial(parse_events, words, what="when"))
        target = NotifyTarget(section.text("to"), events)
        targets.append(section.parsed("to", partial(check_target, target, what="to")))
    return top.parsed("on_end", partial(check_targets, targets))


def _read_requirements(top: YamlSection, base: Path) -> Path | None:
    text = top.text("requirements")
    if not text:
        return None
    path = base / text
    if not parse_requirements_path(path).file.is_file():
        raise top.error(
            "requirements", f"there is no file {path}", "give a path relative to the folder of this file"
        )
    return path

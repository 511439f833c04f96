"""The rules of a run that its shape cannot state: sizes, repeated names, contradicting fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from hopyard.config.schemas.role_rules import check_role, check_topology
from hopyard.config.schemas.runs import SpecIn, to_run_spec
from hopyard.config.schemas.study_json import study_from_json
from hopyard.config.schemas.study_rules import check_new_study, check_parallel
from hopyard.config.schemas.validation_errors import explain
from hopyard.domain.dataset_paths import check_dataset_names, check_dataset_paths
from hopyard.domain.ids import check_label, check_name
from hopyard.domain.notification import check_targets
from hopyard.domain.path_check import check_path
from hopyard.domain.run import MAX_REPLICAS, RunSpec
from hopyard.domain.run_environment import check_settable
from hopyard.domain.run_network import RunNetwork
from hopyard.domain.run_port import check_port_placeholders, check_ports
from hopyard.domain.run_values import MAX_PACKAGE_BYTES, limit_packages
from hopyard.domain.tag_limits import MAX_TAG_BYTES, has_tag_size
from hopyard.domain.text import escape
from hopyard.errors import SpecError

MAX_SPEC_BYTES = 256 * 1024  # commands, variables, parameters and tags together
MAX_STUDY_BYTES = 1024 * 1024  # of a study without its trial


def run_spec_from_json(values: Mapping[str, Any], *, path: str = "") -> RunSpec:
    """Returns the RunSpec of JSON at `path` of a request. Raises SpecError naming the path."""
    try:
        return to_run_spec(msgspec.convert(values, SpecIn))
    except msgspec.ValidationError as error:
        problem = explain(error, values, SpecIn)
        raise SpecError(problem.message(path), hints=problem.hints) from error


def check_spec(spec: RunSpec) -> None:
    """Checks the rules of a spec beyond its shape. Raises SpecError naming the path."""
    if not spec.roles:
        raise SpecError("roles: the list is empty")
    _check_size(spec)
    check_name(spec.project, subject="project")
    check_label(spec.label, subject="label")
    role_names: set[str] = set()
    for index, role in enumerate(spec.roles):
        check_name(role.name, subject=f"roles.{index}.name")
        if role.name in role_names:
            raise SpecError(
                f"roles.{index}.name: `{role.name}` is also the name of another role",
                hints=("give each role its own name",),
            )
        role_names.add(role.name)
        if not role.command or not role.command[0]:
            raise SpecError(f"roles.{index}.command: the program is empty")
        check_role(role, f"roles.{index}")
    if any(role.service for role in spec.roles) and not any(
        role.essential and not role.service for role in spec.roles
    ):
        raise SpecError(
            "roles: each role is a service or not essential",
            hints=("remove `service: true` from the role that does the work: services end after it",),
        )
    environment = spec.environment
    if spec.has_image and not environment.container and not all(role.image for role in spec.roles):
        index = next(i for i, role in enumerate(spec.roles) if not role.image)
        raise SpecError(
            f"roles.{index}.image: this role has no image, and another role has one",
            hints=("give each role an image: only containers of one network can reach each other",),
        )
    if spec.has_image and environment.requirements is not None and not environment.container:
        raise SpecError(
            "environment.requirements: the packages of a container are those of its image",
            hints=(
                "set `container` to build an image with them, or remove `requirements` and use an image "
                "that has the packages",
            ),
        )
    if environment.container and (environment.python or environment.interpreter):
        raise SpecError(
            "environment.container: the Python of a container is that of its base image",
            hints=("remove `python` and `interpreter`, and use an image with the version",),
        )
    if spec.network is RunNetwork.NONE:
        _check_without_network(spec)
    if spec.has_image and spec.study is not None:
        raise SpecError(
            "study: the roles of a study itself run in no container: they run Hopyard, which no image needs "
            "to have",
            hints=("remove `image` from the roles, or set it for the trials: `study.trial`",),
        )
    if not any(role.essential for role in spec.roles):
        raise SpecError(
            "roles: no role is essential",
            hints=("remove `essential: false` from one role: a run ends with its essential replicas",),
        )
    if spec.size > MAX_REPLICAS:
        raise SpecError(
            f"roles: {spec.size} replicas in all, at most {MAX_REPLICAS} may start together",
            hints=("split the work into several runs",),
        )
    check_topology(spec.topology, "topology")
    names: set[str] = set()
    for index, ref in enumerate(spec.datasets):
        check_name(ref.name, subject=f"datasets.{index}.name")
        if ref.name in names:
            raise SpecError(
                f"datasets.{index}.name: the dataset `{ref.name}` is given twice",
                hints=("use one version of a dataset per run",),
            )
        names.add(ref.name)
    check_dataset_paths(spec.datasets)
    check_dataset_names(spec)
    check_ports(spec.ports)
    check_targets(spec.on_end)
    check_port_placeholders([role.command for role in spec.roles], spec.ports)
    if spec.param_format is not None:
        file = PurePosixPath(spec.param_format.file)
        if file.is_absolute() or ".." in file.parts:
            raise SpecError(
                f"param_format.file: `{escape(str(file))}` is outside the folder of the code",
                hints=("give a path in the folder",),
            )
    for path in spec.environment.links:
        check_path(path)
    _check_secrets(spec)
    if spec.study is not None:
        _check_study(spec, spec.study)


def _check_without_network(spec: RunSpec) -> None:
    if not spec.has_image:
        raise SpecError(
            "network: only containers can be without a network",
            hints=("run the replicas in containers, for example with `image: python:3.12-slim`",),
        )
    if spec.ports:
        raise SpecError(
            "network: ports cannot be reached without a network",
            hints=("remove `ports`, or remove `network: none`",),
        )


def check_new_run(spec: RunSpec) -> None:
    """Checks the rules that only a new run or study of a user must keep. Forks, updates and trials inherit
    from runs of earlier versions, which may break these rules. Raises SpecError naming the path."""
    check_variables(spec.env, in_gang=spec.size > 1 or spec.is_elastic or spec.has_launcher)
    if spec.study is None:
        return
    study = study_from_json(spec.study)
    trial = study.trial or {}
    roles = trial.get("roles") or ()
    in_gang = len(roles) > 1 or any(
        role.get("replicas", 1) > 1 or role.get("min_replicas", 0) for role in roles
    )
    check_variables(trial.get("env") or {}, path="study.trial.env", in_gang=in_gang)
    check_new_study(study, spec.params if study.trial is None else trial.get("params") or {})


def check_variables(env: Mapping[str, str], *, path: str = "env", in_gang: bool = False) -> None:
    """Raises SpecError naming the path of a variable that Hopyard sets itself."""
    for name in env:
        check_settable(name, subject=f"{path}.{name}", in_gang=in_gang)


def _check_secrets(spec: RunSpec) -> None:
    for index, name in enumerate(spec.secrets):
        check_settable(name, subject=f"secrets.{index}", in_gang=True)
        if name in spec.env:
            raise SpecError(
                f"secrets.{index}: `{name}` is a secret and a variable of `env`",
                hints=("remove it from one of the two",),
            )


def _check_study(spec: RunSpec, study: Mapping[str, Any]) -> None:
    study_spec = study_from_json(study)
    check_parallel(study_spec)
    if spec.parent is not None:
        raise SpecError("study: a trial cannot be a study itself")
    if study_spec.trial is not None:
        trial = run_spec_from_json(study_spec.trial, path="study.trial")
        if trial.study is not None or trial.parent is not None or trial.resume is not None:
            raise SpecError(
                "study.trial: `study`, `parent` and `resume` are not allowed",
                hints=("remove `study`, `parent` and `resume`",),
            )
        check_spec(trial)
    if study_spec.mop is not None and study_spec.mop.dataset not in {ref.name for ref in spec.datasets}:
        raise SpecError(
            f"study.mop.dataset: the run does not mount `{study_spec.mop.dataset}`",
            hints=("add it to `datasets` too",),
        )


def _check_tags(tags: Mapping[str, str]) -> None:
    """Raises SpecError for a tag that is too long for an index."""
    for name, value in tags.items():
        if not has_tag_size(name, value):
            raise SpecError(
                f"tags.{name}: at most {MAX_TAG_BYTES} bytes are allowed",
                hints=("write a note, or shorten it",),
            )


def _check_size(spec: RunSpec) -> None:
    """Raises SpecError for a large spec. Specs are kept and listed for every run and count to no quota, so
    they must be small."""
    _check_tags(spec.tags)
    packages = spec.environment.packages
    if len(limit_packages(packages)) < len(packages):
        raise SpecError(
            f"environment.packages: at most {MAX_PACKAGE_BYTES >> 10} KiB are allowed",
            hints=("send fewer of them: the run reports its own packages when it starts",),
        )
    large = {
        "roles": spec.roles,
        "env": spec.env,
        "params": spec.params,
        "tags": spec.tags,
        "environment.editable": spec.environment.editable,
        "environment.links": spec.environment.links,
        "secrets": spec.secrets,
    }
    sizes = {name: len(msgspec.json.encode(value)) for name, value in large.items()}
    if sum(sizes.values()) > MAX_SPEC_BYTES:
        name = max(sizes, key=sizes.__getitem__)
        raise SpecError(
            f"{name}: commands, env, params and tags have {sum(sizes.values()) >> 10} KiB "
            f"together, at most {MAX_SPEC_BYTES >> 10} KiB are allowed",
            hints=(
                (
                    f"`{name}` has {sizes[name] >> 10} KiB: move large values into a file of the code "
                    "or of a dataset"
                ),
            ),
        )
    if (
        spec.study is not None
        and (size := len(msgspec.json.encode({**spec.study, "trial": None}))) > MAX_STUDY_BYTES
    ):
        raise SpecError(
            f"study: it has {size >> 10} KiB, at most {MAX_STUDY_BYTES >> 10} KiB are allowed",
            hints=("set fewer or shorter values",),
        )

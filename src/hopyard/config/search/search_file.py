"""`search.yaml`: a study described in a file, or the same as a mapping in Python.

```yaml
name: digits                    # of the study; the file's name where it has none
metric: val_acc                 # what trials report: hop.log(val_acc=…, step=epoch)
goal: max                       # or mode:; inferred from a clear metric name (loss, acc)
parallel: trials                # every trial a run of its own; or mop: trials hop between workers
searcher: {name: asha, eta: 4}  # or its name alone
trials: 50
concurrent: 4
epochs: 27                      # the largest budget of a trial
seed: 0
space:
  lr: loguniform(1e-5, 1e-1)
  batch_size: [16, 32, 64]

script: train.py                # parallel: trials: or command:, or roles: of a gang
budget_param: epochs            # the parameter with the number of epochs of a trial

trainable: train.py:Digits      # parallel: mop
workers: 4
dataset: mnist
partitions: {validation: 0.2, stratify: label}

resources: {cpus: 2}            # of a trial, or of a worker
queue: research                 # and all other keys of a run in hop.yaml
```
docs/reference/search-file.md describes all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopyard.config.code_check import check_command, check_path_base, check_within_code
from hopyard.config.key_values import split_key_mark
from hopyard.config.metric_goal import read_goal
from hopyard.config.role_section import read_arguments, read_role, read_roles
from hopyard.config.run_file import RUN_KEYS, read_request
from hopyard.config.run_request import DatasetRequest, RoleRequest, RunRequest, script_command
from hopyard.config.schemas.studies import StudyIn
from hopyard.config.search import mop_section
from hopyard.config.search.budget_section import BUDGET_KEYS, read_budget, with_step_options
from hopyard.config.search.points_section import read_points
from hopyard.config.search.searcher_section import read_searcher
from hopyard.config.search.space import read_space
from hopyard.config.search.stop_section import read_stop_rules
from hopyard.config.search.study_keys import check_study_request
from hopyard.config.search.study_request import StudyRequest, driver_role
from hopyard.config.section_values import read_field, read_name, read_positive_field
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, as_section, format_given, read_yaml
from hopyard.domain.ids import slug
from hopyard.domain.space import Space
from hopyard.domain.study import (
    MopSpec,
    Parallel,
    StudySpec,
)
from hopyard.errors import SpecError

STUDY_KEYS = (
    "name",
    "metric",
    "goal",
    "mode",
    "parallel",
    "searcher",
    "space",
    "trials",
    "concurrent",
    *BUDGET_KEYS,
    "max_failures",
    "retries",
    "retry_errors",
    "points",
    "stop",
    "seed",
    "tensorboard",
    "mlflow",
)
TRIAL_KEYS = (
    "command",
    "script",
    "arguments",
    "roles",
    "budget_param",
    "replicas",
    "image",
)
ROLE_KEYS = ("resources", "pool", "labels")
MOP_KEYS = (
    "trainable",
    "workers",
    "dataset",
    "partitions",
    "deterministic",
    "threads",
    "hybrid",
    "unit_timeout",
    "order",
    "evaluate_every",
)
# keys of the files of Weights & Biases and Determined
_FOREIGN_KEYS = {
    "program": "script: train.py",
    "entrypoint": "command: python train.py",
    "method": "searcher: random",
    "parameters": "space: {lr: …}",
    "hyperparameters": "space: {lr: …}",
    "run_cap": "trials: 20",
    "max_restarts": "retries: 3",
    "early_terminate": "searcher: {name: asha}",
}
SEARCH_KEYS = tuple(dict.fromkeys((*STUDY_KEYS, *TRIAL_KEYS, *ROLE_KEYS, *MOP_KEYS, *RUN_KEYS)))


def read_search_file(path: Path, folder: Path) -> StudyRequest:
    """Returns the study that `path` describes. `folder` is the folder of the code, and names the project if
    the file does not. Raises SpecError with the path of the invalid value, and a fix."""
    return read_search(
        read_yaml(path), base=path.parent, folder=folder, name=slug(path.resolve().stem, fallback="search")
    )


def search_from_mapping(
    mapping: Mapping[str, Any], folder: Path, *, path: str = "search", name: str = "search"
) -> StudyRequest:
    """Reads a mapping with the same keys, as `read_search_file` does. Raises SpecError."""
    return read_search(as_section(path, "", dict(mapping)), base=folder, folder=folder, name=name)


def read_search(top: YamlSection, *, base: Path, folder: Path, name: str) -> StudyRequest:
    """Returns the study of the file. `base`: the folder to which its paths are relative. `name`: of a study
    without a name. Raises SpecError."""
    _check_foreign_keys(top)
    top.check_keys(*SEARCH_KEYS)
    parallel = _read_parallel(top)
    _check_keys(top, parallel)
    mop = mop_section.read_mop(top, folder) if parallel is Parallel.MOP else None
    budget = read_budget(top, None if mop is None else mop.partitions.parts)
    searcher, (space, new_keys) = with_step_options(read_searcher(top, folder), budget), _read_space(top)
    spec = StudySpec(
        name=read_name(top, "name") or name,
        space=space,
        metric=_read_metric(top),
        goal=read_goal(top),
        parallel=parallel,
        searcher=searcher,
        trials=read_field(top, "trials", StudyIn),
        concurrent=read_positive_field(top, "concurrent", StudyIn),
        max_epochs=budget.largest,
        budget_given=budget.is_given,
        seed=read_field(top, "seed", StudyIn),
        budget_param=budget.param,
        budget_unit=budget.unit,
        steps_per_epoch=budget.steps_per_epoch,
        retries=read_field(top, "retries", StudyIn),
        retry_errors=read_field(top, "retry_errors", StudyIn),
        max_failures=read_field(top, "max_failures", StudyIn),
        stop=read_stop_rules(top),
        points=read_points(top, space, searcher),
        mop=None if mop is None else replace(mop, evaluate_every=budget.evaluate_every),
        tensorboard=read_field(top, "tensorboard", StudyIn),
        mlflow=top.text("mlflow"),
    )
    run = replace(read_request(top, (), base=base, folder=folder), label=spec.name)
    if spec.mop is not None:
        if new_keys:
            raise top.error(f"space.{min(new_keys.values())}", "only Hydra adds keys by `+`")
        request = StudyRequest(spec, _build_mop_run(top, run, spec.mop))
    else:
        # the study notifies of its own end
        trial = replace(run, roles=_read_trial_roles(top, folder), label="", on_end=())
        study_run = replace(run, roles=(driver_role(),), params={}, topology=None, time_limit_s=None)
        request = StudyRequest(spec, study_run, trial, new_keys)
    request = replace(request, has_default_searcher=top.values.get("searcher") is None)
    check_study_request(top, request)
    return request


def _check_foreign_keys(top: YamlSection) -> None:
    """Raises SpecError for a key of another program's file, with the key that it has here."""
    for key, own in _FOREIGN_KEYS.items():
        if key in top.values:
            raise SpecError(f"{top.file}: there is no key `{key}`", hints=(f"write `{own}`",))
    if isinstance(top.values.get("metric"), dict):
        raise top.error(
            "metric", "it is one text", "write `metric: NAME`, and `goal: min` or `goal: max` beside it"
        )


def _read_parallel(top: YamlSection) -> Parallel:
    text = top.text("parallel")
    if not text:
        return Parallel.MOP if top.contains("trainable") else Parallel.TRIALS
    try:
        return Parallel(text)
    except ValueError:
        raise top.error(
            "parallel",
            f"{format_given(text)} is no way to train trials",
            *unknown_name_hints(text, list(Parallel)),
        ) from None


def _check_keys(top: YamlSection, parallel: Parallel) -> None:
    """Raises SpecError for a key of the other value of `parallel`."""
    refused_keys, required_mode = (
        (TRIAL_KEYS, Parallel.TRIALS) if parallel is Parallel.MOP else (MOP_KEYS, Parallel.MOP)
    )
    for key in refused_keys:
        if key in top.values:
            hint = f"write `parallel: {required_mode}`, or leave it out"
            if key == "dataset":
                hint = "trials mount datasets: `datasets: [mnist]`"
            raise top.error(
                key, f"it is of `parallel: {required_mode}`, and this study is `parallel: {parallel}`", hint
            )


def _read_space(top: YamlSection) -> tuple[Space, dict[str, str]]:
    """Returns the space, and by name the keys with a mark of Hydra: `+lr`."""
    if "space" not in top.values:
        raise top.error("space", "missing", "what is searched: `space: {lr: [0.1, 0.01]}`")
    ranges = top.values["space"] if top.values["space"] is not None else {}
    marked: dict[str, str] = {}
    if isinstance(ranges, Mapping):
        marked = {split_key_mark(key)[1]: key for key in ranges if split_key_mark(str(key))[0]}
        twice = next((name for name in marked if name in ranges), None)
        if twice is not None:
            raise top.error(f"space.{marked[twice]}", f"`{twice}` is there as well", "keep one of the two")
        names = {key: name for name, key in marked.items()}
        ranges = {names.get(key, key): value for key, value in ranges.items()}
    return read_space(ranges, where=f"{top.file}: space"), marked


def _read_metric(top: YamlSection) -> str:
    text = top.text("metric")
    if not text:
        raise top.error("metric", "missing", "the name that trials report: `metric: val_acc`")
    return text


def _read_trial_roles(top: YamlSection, folder: Path) -> tuple[RoleRequest, ...]:
    ways = [key for key in ("command", "script", "roles") if top.contains(key)]
    if not ways:
        raise top.error(
            "script", "missing", "what a trial runs: `script: train.py`, or `command: torchrun train.py`"
        )
    if len(ways) > 1:
        raise top.error(ways[1], f"`{ways[0]}` says what a trial runs already", "keep one of the two")
    if ways == ["roles"]:
        for key in (*ROLE_KEYS, "replicas", "arguments"):
            if top.contains(key):
                raise top.error(
                    key, "every role has its own", f"write it in the role: roles: [{{command: …, {key}: …}}]"
                )
        roles = read_roles(top)
        for role in roles:
            check_command(top, "roles", role.command, folder)
        return roles
    values = {
        key: top.values[key] for key in ("command", "replicas", "image", *ROLE_KEYS) if key in top.values
    }
    if ways == ["script"]:
        script = top.text("script")
        words = read_arguments(top)
        check_within_code(top, "script", script)
        check_path_base(top, "script", script, folder)
        values["command"] = list(top.parsed("script", lambda: script_command(script, words, folder=folder)))
    elif top.contains("arguments"):
        raise top.error("arguments", "they belong to a script", "write them in the command")
    role = read_role(YamlSection(top.file, "", values))
    check_command(top, ways[0], role.command, folder)
    return (role,)


def _build_mop_run(top: YamlSection, run: RunRequest, mop: MopSpec) -> RunRequest:
    """Returns the gang: a driver, and workers that it can lose. The dataset is mounted beside the other
    datasets of the run. Workers without a request for CPUs leave part of their cores to the driver, so that
    as many workers as cores fit beside it."""
    worker = read_role(
        YamlSection(
            top.file,
            "",
            {
                "command": list(mop_section.WORKER_COMMAND),
                **{k: top.values[k] for k in ROLE_KEYS if k in top.values},
            },
        )
    )
    name, version = mop_section.read_dataset(top)
    if any(name == dataset.name for dataset in run.datasets):
        raise top.error("datasets", f"`{name}` is the study's dataset already", "leave it out of `datasets`")
    cpu_milli = worker.cpu_milli if worker.cpu_limited else worker.cpu_milli - driver_role().cpu_milli
    roles = (
        driver_role(),
        replace(worker, name="worker", replicas=mop.workers, essential=False, cpu_milli=cpu_milli),
    )
    return replace(run, roles=roles, datasets=(DatasetRequest(name, version), *run.datasets))

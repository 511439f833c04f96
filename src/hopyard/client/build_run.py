"""Builds the request of a run from a target and the options of `hop run`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopyard.client.feedback import Notify, print_notice
from hopyard.config import key_values as pairs
from hopyard.config.run_request import (
    SIZE_OPTIONS,
    RoleRequest,
    RunRequest,
    default_project,
    parse_datasets,
    parse_network,
    parse_placement,
    parse_scheduling,
    parse_sizes,
    script_command,
)
from hopyard.domain.checkpoint_files import check_patterns
from hopyard.domain.checkpoint_names import saved_file_patterns
from hopyard.domain.ids import check_label, check_name
from hopyard.domain.launcher import Launcher
from hopyard.domain.notebook import NOTEBOOK_SUFFIX, read_notebook
from hopyard.errors import SpecError

_OPTION_NAMES = {
    "gpu_memory": "--gpu-memory",
    "extras": "--resource",
    "private_folders": "--private-folders",
}
_SCRIPTS = (".py", NOTEBOOK_SUFFIX)
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def build_request(
    target: str,
    arguments: tuple[str, ...],
    folder: Path,
    options: dict[str, Any],
    *,
    notify: Notify = print_notice,
) -> RunRequest:
    """Returns the run that the target and the options of `hop run` ask for. Raises SpecError."""
    if target.endswith((".yaml", ".yml")):
        from hopyard.client.submit import warn_of_secrets
        from hopyard.config.run_file import read_run_file

        request = read_run_file(Path(target), folder=folder)
        warn_of_secrets(request, target, notify)
        role = _single_role(request, arguments, options, target)
    else:
        command = _role_command(
            target,
            arguments,
            folder,
            base=options.get("requirements") is not None or options.get("image") is not None,
        )
        request = RunRequest(roles=(), project=default_project(_target_path(target, folder)[0]))
        role = RoleRequest(command)
    if role is not None:
        role = replace(role, **parse_sizes(options))
        request = replace(request, roles=(role,))
        if (options.get("nodes") or 1) > 1:
            notify(_describe_spread(role, options["nodes"]))
    places = parse_placement(options)
    if places:
        request = replace(request, roles=tuple(replace(each, **places) for each in request.roles))
    return with_saved_files(apply_options(request, options), _target_path(target, folder)[0])


def _describe_spread(role: RoleRequest, nodes: int) -> str:
    """Returns the sentence about the processes that `--nodes` starts."""
    each = role.replicas // nodes
    gpus = f" with {role.gpus} GPU{'s' * (role.gpus > 1)}" if role.gpus else ""
    replicas = f"one replica{gpus}" if each == 1 else f"{each} replicas{gpus and f'{gpus} each'}"
    starts = "" if Launcher(role.launcher).has_processes else "; each replica starts the command once"
    return f"note: {replicas} on each of {nodes} nodes{starts}"


def with_saved_files(request: RunRequest, folder: Path) -> RunRequest:
    """Returns the request with the checkpoints that its scripts save among those that are kept. Raises
    SpecError for patterns of files that are never kept."""
    check_patterns(request.checkpoint_files)
    scripts = {word for role in request.roles for word in role.command if word.endswith(_SCRIPTS)}
    names = dict.fromkeys(request.checkpoint_files)
    for script in sorted(scripts):
        with suppress(OSError, SpecError):
            names |= dict.fromkeys(saved_file_patterns(_source(folder / script)))
    return replace(request, checkpoint_files=tuple(names)) if names else request


def _source(script: Path) -> str:
    if script.name.endswith(NOTEBOOK_SUFFIX):
        return read_notebook(script.read_bytes(), script.name).source()
    return script.read_text(errors="replace")


def _single_role(
    request: RunRequest, arguments: tuple[str, ...], options: dict[str, Any], file: str
) -> RoleRequest | None:
    """Returns the role that options of replicas change; None where there are several and no such option."""
    if len(request.roles) == 1:
        return replace(request.roles[0], command=(*request.roles[0].command, *arguments))
    names = [
        _OPTION_NAMES.get(name, f"--{name}")
        for name in SIZE_OPTIONS
        if options.get(name) not in (None, (), False)
    ]
    if arguments:
        names.append("arguments")
    if names:
        raise SpecError(
            f"{', '.join(names)}: {file} has {len(request.roles)} roles",
            hints=("set it per role in the file",),
        )
    return None


def apply_options(base: RunRequest, options: dict[str, Any]) -> RunRequest:
    """Returns `base` with the options that do not concern roles. An option overrides the file."""
    changes = parse_scheduling(options)
    if options.get("label"):
        changes["label"] = check_label(check_name(options["label"], subject="--name"), subject="--name")
    if options.get("project"):
        changes["project"] = check_name(options["project"], subject="--project")
    if options.get("datasets"):
        given = (*base.datasets, *parse_datasets(options["datasets"]))
        changes["datasets"] = tuple({dataset.name: dataset for dataset in given}.values())
    if options.get("checkpoint_files"):
        changes["checkpoint_files"] = (*base.checkpoint_files, *options["checkpoint_files"])
    if options.get("params"):
        changes["params"] = {
            **base.params,
            **pairs.parse_params(options["params"], prefixes=pairs.NEW_KEY_MARKS),
        }
        changes["param_texts"] = pairs.param_texts(options["params"])
    if options.get("params_as"):
        changes["params_as"] = options["params_as"]
    if options.get("env"):
        changes["env"] = {**base.env, **pairs.parse_env(options["env"], os.environ)}
    if options.get("secrets"):
        changes["secrets"] = tuple(dict.fromkeys([*base.secrets, *pairs.parse_secrets(options["secrets"])]))
    if options.get("tags"):
        changes["tags"] = {**base.tags, **pairs.parse_tags(options["tags"])}
    if options.get("requirements") is not None:
        changes["requirements"] = options["requirements"]
    if options.get("container"):
        changes["container"] = True
    if options.get("network"):
        changes["network"] = parse_network(options["network"])
    python = options.get("python")
    if python is not None and "/" not in python:
        if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,5}){0,2}", python):
            raise SpecError(
                f"--python: `{python}` is not a version",
                hints=("for example 3.12; or give the path of an interpreter",),
            )
        changes |= {"python": python, "interpreter": ""}
    changed = replace(base, **changes) if changes else base
    if changed.python and changed.requirements is None:
        raise SpecError(
            f"--python: version {changed.python} needs requirements",
            hints=("add --requirements FILE, or give the path of an interpreter",),
        )
    if changed.container or any(role.image for role in changed.roles):
        _check_image_options(changed, python)
    return changed


def _check_image_options(request: RunRequest, python: str | None) -> None:
    """Raises SpecError for an option about the environment, which is that of the image."""
    if request.requirements is not None and not request.container:
        raise SpecError(
            "--requirements: the packages of a container are those of its image",
            hints=(
                "add --container to build an image with them, or remove --requirements and use an image "
                "that has the packages",
            ),
        )
    if python or request.interpreter or request.python:
        raise SpecError(
            "--python: the Python of a container is that of its image",
            hints=("remove --python, and use an image with the version: --image python:3.12-slim",),
        )


def _role_command(target: str, arguments: tuple[str, ...], folder: Path, *, base: bool) -> tuple[str, ...]:
    if target.endswith(_SCRIPTS):
        packed, script = _target_path(target, folder)
        return script_command(script, arguments, folder=packed)
    if target in ("python", "python3"):
        return ("python", *arguments)
    # with its archive formats it takes longer to import than a script takes to be found
    from shutil import which

    program = which(target)
    if program is None and not base:
        problem = f"`{target}` is not a program that can be run"
        hints = (
            [f"run a script by its name: hop run {target}.py"] if (folder / f"{target}.py").is_file() else []
        )
        if (folder / target).is_dir():
            problem = f"`{target}` is a folder"
        elif "/" in target and (folder / target).is_file():
            problem, hints = f"`{target}` is not executable", [f"chmod +x {target}"]
        elif (folder / target).is_file():
            hints = [f"run a file of this folder with ./: hop run ./{target}"]
        raise SpecError(
            problem, hints=(*hints, "give a Python script, a notebook, a command in PATH, or a hop.yaml")
        )
    if "/" in target or program is None or str(Path(program).parent) in _SYSTEM_PATH or base:
        return (target, *arguments)
    # A program of the caller's own environment (torchrun in a venv): the server's PATH may not have it.
    return (str(Path(program).absolute()), *arguments)


def target_folder(target: str, folder: Path) -> Path:
    """Returns the folder that is packed for the target."""
    return _target_path(target, folder)[0]


def check_code_folder(folder: Path) -> None:
    """Raises SpecError for a folder that no run may be packed from."""
    if folder == Path("/"):
        raise SpecError(
            "the current folder is /, so the files of the whole machine would be packed",
            hints=("cd into the folder of the code",),
        )


def _target_path(target: str, folder: Path) -> tuple[Path, str]:
    """Returns the folder to pack, and the path of a script in it.

    That is the current folder, or the script's own folder if the script is not below the current one. In `/`
    it is always the script's own folder, because every file is below `/`.
    """
    if not target.endswith(_SCRIPTS):
        return folder, target
    here, own = folder.resolve(), (folder / target).parent.resolve()
    if own == here or (own.is_relative_to(here) and here != Path("/")):
        return folder, str(own.relative_to(here) / Path(target).name)
    return own, Path(target).name


def find_interpreter(python: str | None) -> str | None:
    """Returns the interpreter that is named by a path, None where none is. Raises SpecError."""
    if not python or "/" not in python:
        return None
    path = Path(python).expanduser().absolute()
    if not os.access(path, os.X_OK) or not path.is_file():
        raise SpecError(
            f"--python: {python} is not an interpreter",
            hints=("give the path of a python program, or a version with --requirements",),
        )
    return str(path)

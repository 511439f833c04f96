"""The command of the user's process with the run's parameters in it, and which of these the process read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopyard.datasets.open_folder import OpenFolder
from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.command_template import DATASET_PREFIX, placeholder_names
from hopyard.domain.dataset_paths import fill_dataset_paths
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.param_format import (
    SHELL_SOURCE,
    FilledCommand,
    ParamStyle,
    ParamValue,
    fill_command,
    notebook_hint,
    unread_names,
    unread_sentence,
)
from hopyard.domain.run import RunEventKind
from hopyard.domain.run_port import port_placeholders
from hopyard.errors import SpecError
from hopyard.private_files import open_below
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.uploads import open_folder_below

READS_FILE = "param-reads"  # of the replica's folder; `sdk.startup.param_reads` writes it
_MAX_READS_BYTES = 4 * 1024 * 1024
_NOTEBOOK_READS = ("notebook", "hop.params")
_PARSER, _PYTHON, _COPY = "parser", "python", "copy"
_LOOKS = (_PARSER, "other", "arguments")  # some process has looked at arguments
_PYTHON_PROGRAM = re.compile(r"(python|pypy)[0-9.]*")
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "uv"})  # they start a Python script


def with_dataset_folders(launch: ReplicaLaunch, datasets: Mapping[str, Path]) -> ReplicaLaunch:
    """Returns the launch with the folders of datasets in its parameters, which reach the script by several
    ways: arguments, variables, a file, `hop.params`."""
    params = {
        name: fill_dataset_paths(value, datasets) if isinstance(value, str) else value
        for name, value in launch.params.items()
    }
    return replace(launch, params=params)


def user_command(
    launch: ReplicaLaunch, datasets: Mapping[str, Path], ports: Mapping[int, int]
) -> FilledCommand:
    """Returns the command as it runs, with the parameters, the folders of datasets and the ports filled in.
    ports: as in `NodeContext`."""
    extra = {f"{DATASET_PREFIX}{name}": str(folder) for name, folder in datasets.items()}
    extra |= port_placeholders(launch.ports, ports)
    filled = fill_command(launch.command, launch.params, launch.param_format, extra=extra)
    if launch.env and filled.variables:  # the user's own `--env` counts more
        variables = {name: text for name, text in filled.variables.items() if name not in launch.env}
        return replace(filled, variables=variables)
    return filled


def param_variables(launch: ReplicaLaunch, filled: FilledCommand) -> dict[str, str]:
    """Returns the variables that hold parameters, and those that the import hooks need."""
    form, variables = launch.param_format, dict(filled.variables)
    if launch.params:
        variables["HOPYARD_PARAMS_GIVEN"] = json.dumps(dict(filled.given))
    if form is not None and form.style is ParamStyle.FILE and launch.params:
        variables["HOPYARD_PARAMS_FILE"] = form.file
    return variables


def write_param_file(launch: ReplicaLaunch, work: Path) -> None:
    """Writes the parameters into the file of the working folder from which the script reads them: YAML, TOML
    or JSON, by its ending. A name with dots is a path of nested keys. Raises PrepareFailed for a file without
    keys."""
    form = launch.param_format
    if form is None or form.style is not ParamStyle.FILE or not launch.params:
        return
    top = os.path.realpath(work)
    folder, file = os.path.split(os.path.join(top, form.file))
    try:
        folder = os.path.relpath(os.path.realpath(folder), top)
        old = _read_file(work, os.path.relpath(os.path.realpath(os.path.join(top, form.file)), top))
        taken = {name: value for name, value in launch.params.items() if form.takes(name)}
        new = _changed_settings(form.file, old, taken)
        # the script of another replica may replace folders by links meanwhile
        with open_folder_below(work, _inner_path(folder)) as descriptor:
            OpenFolder(descriptor).write(file, [new])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise PrepareFailed(f"the parameters cannot be written into {form.file}: {error}") from error


def _read_file(work: Path, path: str) -> bytes:
    """Returns the content of a file; nothing if it is missing. Raises ValueError, OSError."""
    try:
        with os.fdopen(open_below(work, _inner_path(path), os.O_RDONLY), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _changed_settings(name: str, old: bytes, params: Mapping[str, ParamValue]) -> bytes:
    """Returns the content of a file of settings with these. Raises ValueError."""
    from hopyard.config.list_setting import with_lists

    ending = os.path.splitext(name)[1].lower()
    if ending in (".yaml", ".yml"):
        from hopyard.config.yaml_loader import load_yaml
        from hopyard.config.yaml_settings import change_yaml

        known: Any = None
        with suppress(SpecError):  # with tags of the script's own
            known = load_yaml(old, name)
        return change_yaml(old.decode("utf-8-sig"), with_lists(params, known)).encode()
    if ending == ".toml":
        import tomllib

        from hopyard.config.toml_settings import change_toml

        text = old.decode("utf-8-sig")
        return change_toml(text, with_lists(params, tomllib.loads(text))).encode()
    from hopyard.config.nested_settings import set_nested

    values = json.loads(old) if old.strip() else {}
    if not isinstance(values, dict):
        raise ValueError("it is not an object")
    for key, value in with_lists(params, values).items():
        set_nested(values, [key] if key in values else key.split("."), value)
    return json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n"


def _inner_path(path: str) -> str:
    """Returns a relative path. Raises ValueError if it leads out of the working folder."""
    if path.split("/")[0] == os.pardir:
        raise ValueError("it is outside the working folder")
    return "" if path == os.curdir else path


def find_unread_params(launch: ReplicaLaunch, folder: ReplicaDir) -> list[str]:
    """Returns the parameters that no process of the run read, as far as that is certain.

    Without an import hook in a Python process nothing is certain. Parameters in the command are unread if a
    parser of the script ran and does not know them, or if the script has not looked at its arguments. Those
    in variables may have been read from a copy, and those that a shell script names by the shell.
    """
    form = launch.param_format
    if not launch.params or (form is not None and form.script and form.script not in launch.command):
        return []  # the script of another role takes them
    if launch.evaluation is not None:
        return []  # they are those of the training
    reads = _read_reads(folder)
    kinds = {line.get("by") for line in reads}
    if _PYTHON not in kinds:
        return []
    filled = fill_command(launch.command, launch.params, form)
    in_command = {name for name in placeholder_names(launch.command) if name in filled.given}
    if form is not None and form.style in (ParamStyle.ARGS, ParamStyle.HYDRA, ParamStyle.JSON):
        in_command.update(filled.given)
    ignored = in_command & _ignored_names(launch.command, reads)
    if form is not None and form.style is ParamStyle.NOTEBOOK:  # its kernel reads all variables
        reads = [line for line in reads if line.get("by") in _NOTEBOOK_READS]
    read = {name for line in reads for name in line.get("read", ()) if isinstance(name, str)}
    read.update(name for name in filled.placed if name not in ignored)
    if form is not None and form.source.startswith(SHELL_SOURCE):
        read.update(name for name in launch.params if form.find_option(name) is not None)
    uncertain: set[str] = set()
    if _PARSER not in kinds:
        uncertain |= in_command - ignored
    if _COPY in kinds and form is not None and form.style is ParamStyle.ENV:
        uncertain |= set(filled.given) - ignored
    return unread_names([name for name in launch.params if name not in uncertain], read)


def _ignored_names(command: Sequence[str], reads: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the parameters in the arguments of Python processes that never looked at their arguments.

    A launcher passes its arguments on, so the programs that it starts count. Other programs than Python may
    have the same arguments, unless the command starts Python.
    """
    program = os.path.basename(command[0])
    is_python = _PYTHON_PROGRAM.fullmatch(program) or program.endswith(".py")
    if not is_python and not (program in _LAUNCHERS and any(word.endswith(".py") for word in command)):
        return set()
    if any(line.get("by") in _LOOKS for line in reads):
        return set()
    launchers = {line.get("process") for line in reads if line.get("by") == "launcher"}
    return {
        name
        for line in reads
        if line.get("by") == "holder" and line.get("process") not in launchers
        for name in line.get("held", ())
        if isinstance(name, str)
    }


def report_unread_params(launch: ReplicaLaunch, folder: ReplicaDir, exit: Exit) -> None:
    """Names the parameters that nothing read, in the events and on stderr: their values had no effect. A
    script that failed may have ended before it read them."""
    if launch.rank:
        return
    has_metrics = False
    with suppress(OSError):
        has_metrics = (folder.streams / "metrics").stat().st_size > 0
    is_done = exit.is_success or (exit.kind is ExitKind.STOPPED and has_metrics)
    names = find_unread_params(launch, folder) if is_done else []
    if names:
        with suppress(OSError):
            folder.append_json("events", kind=RunEventKind.UNREAD_PARAMS, names=names)
            folder.append("stderr", f"hopyard: warning: {unread_sentence(names)}\n".encode())
            form = launch.param_format
            if form is not None and form.style is ParamStyle.NOTEBOOK:
                folder.append("stderr", f"hopyard: hint: {notebook_hint(names[0])}\n".encode())


def _read_reads(folder: ReplicaDir) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    with suppress(OSError):
        with os.fdopen(open_below(folder.root, READS_FILE, os.O_RDONLY), "rb") as file:
            for line in file.read(_MAX_READS_BYTES).splitlines():
                with suppress(ValueError):
                    value = json.loads(line)
                    if isinstance(value, dict):
                        lines.append(value)
    return lines

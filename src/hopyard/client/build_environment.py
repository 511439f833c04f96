"""Builds the specification of a run's environment: an interpreter of this machine, or requirements."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from hopyard.client.editable_installs import record_editable_installs
from hopyard.client.environment_files import (
    EnvironmentFile,
    parse_script_metadata,
    project_requires_python,
    read_environment_file,
    read_script_metadata,
)
from hopyard.client.feedback import Notify
from hopyard.client.interpreter import caller_interpreter, installed_packages, interpreter_version
from hopyard.client.python_version import check_version, is_allowed, is_too_old, pinned_version
from hopyard.config.run_request import RunRequest
from hopyard.domain.run_values import limit_packages
from hopyard.domain.urls import find_secrets
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

MIN_SCRIPT_PYTHON = (3, 9)  # of a script that imports `hopyard`
MIN_STUDY_PYTHON = (3, 11)  # of a study: its interpreter runs the study itself, too
SECRET_NAME = re.compile(
    r".*(TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIALS|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)", re.IGNORECASE
)  # of variables
_SDK_IMPORT = re.compile(rb"^\s*(?:import|from)\s+hopyard\b", re.MULTILINE)


def build_environment(
    request: RunRequest,
    folder: Path,
    interpreter: str | None,
    extras: dict[str, bytes],
    notify: Notify,
    *,
    commands: Sequence[Sequence[str]],
    files: set[str],
    is_study: bool = False,
) -> api.EnvironmentIn:
    """Returns the environment of a run: of its requirements, or of the inline metadata of its script, or an
    interpreter of this machine.

    folder: the code. extras: receives the blob of the requirements. commands: of the run and of its trials,
    with their scripts. files: receives the archives of the code that the requirements install. Raises
    SpecError.
    """
    if not request.container and any(role.image for role in request.roles):
        return {"interpreter": ""}
    required: EnvironmentFile | None = None
    name = ""
    scripts = _scripts(commands, folder)
    if request.requirements is not None:
        name = str(request.requirements)
        variables = {**os.environ, **request.env}
        secrets = {name for name in variables if SECRET_NAME.fullmatch(name)} | set(request.secrets)
        required = read_environment_file(
            request.requirements,
            folder,
            {k: v for k, v in variables.items() if k not in secrets},
            secrets=secrets,
        )
        _check_secret_variables(required.requirements, name, secrets - set(request.secrets))
    elif interpreter is None:
        name, required = _script_environment(scripts, folder)
        if required is not None:
            notify(f"the environment is built from the inline metadata of {name}")
    if required is None and request.container:
        raise SpecError(
            "--container: no requirements are given",
            hints=("add --requirements FILE; --image alone uses the packages of the image",),
        )
    if required is None:
        interpreter = interpreter or caller_interpreter(os.environ)
        oldest = MIN_STUDY_PYTHON if is_study else MIN_SCRIPT_PYTHON
        return _checked_interpreter(scripts, folder, interpreter, notify, oldest)
    files.update(required.files)
    data = required.requirements.encode()
    reject_secrets(name, data)
    if request.python:
        check_version(request.python, required.requires_python, name=name)
    environment: api.EnvironmentIn = {
        "interpreter": interpreter or "",
        "requirements": add_blob(data, extras),
        "python": request.python or ("" if interpreter else required.python or pinned_version(folder)),
    }
    if request.container:  # its Python is that of the image
        environment["python"], environment["container"] = "", True
    if required.sources:
        environment["editable"] = dict(required.sources)
    return environment


def changed_metadata(
    recorded: api.EnvironmentIn,
    commands: Sequence[Sequence[str]],
    folder: Path,
    read_before: Callable[[str], bytes],
    extras: dict[str, bytes],
) -> tuple[str, api.EnvironmentIn | None]:
    """Returns the script and the environment that its inline metadata in other code describes; None where
    that of the run remains: it is the same, or the user has chosen another by `--requirements`.

    read_before: returns a file of the run's own code, b"" for an absent one.
    """
    name, required = _script_environment(_scripts(commands, folder), folder)
    if required is None:
        return name, None
    used, data = recorded.get("requirements") or "", required.requirements.encode()
    before = parse_script_metadata(read_before(name), name)
    expected = "" if before is None else _digest(before.requirements.encode())
    if used == _digest(data) or used != expected:
        return name, None
    reject_secrets(name, data)
    python = recorded.get("python") or ""
    if python in ("", before.python if before else ""):
        python = required.python or pinned_version(folder)
    elif required.requires_python:
        try:
            check_version(python, required.requires_python, name=name)
        except SpecError:  # the version of the run's `--python`, which the new script excludes
            python = required.python
    environment: api.EnvironmentIn = {
        "interpreter": "",
        "requirements": add_blob(data, extras),
        "python": python,
    }
    if recorded.get("container"):
        environment["python"], environment["container"] = "", True
    return name, environment


def interpreter_environment(
    folder: Path, interpreter: str, notify: Notify, python_path: str = ""
) -> api.EnvironmentIn:
    """Returns the environment of an interpreter as it is now. folder: the code, which may be the source of
    editable packages. python_path: its `PYTHONPATH`."""
    environment: api.EnvironmentIn = {
        "interpreter": interpreter,
        "packages": limit_packages(installed_packages(interpreter, python_path)),
    }
    editable = record_editable_installs(folder, interpreter, notify)
    if editable:
        environment["editable"] = editable
    if any(not source.startswith("/") for source in editable.values()):
        environment["folder"] = str(folder.resolve())
    return environment


def reject_secrets(name: str, data: bytes) -> None:
    """Raises SpecError for a secret in an address: every user can read code and requirements."""
    for line, address in find_secrets(data.decode(errors="replace")):
        hints = (
            (
                "name it instead: `https://user:${TOKEN}@…` in the file, `hop secret set TOKEN` once, and "
                "`hop run --secret TOKEN`"
            ),
            "or leave it out and set UV_DEFAULT_INDEX or UV_INDEX where the server is started",
            f"or, where no run needs it, name {name} in .hopignore",
        )
        raise SpecError(
            f"{name}: line {line} holds a password or token for {address}, and every user of the "
            "server could read it",
            hints=hints,
        )


def _check_secret_variables(text: str, name: str, secrets: Collection[str]) -> None:
    """Raises SpecError for a variable of this machine that may hold a secret: its value would be in the text
    that every user can read."""
    for variable in re.findall(r"\$\{([A-Z0-9_]+)\}", text):
        if variable in secrets:
            raise SpecError(
                f"{name}: ${{{variable}}} may be a password or token that every user could read",
                hints=(f"`hop secret set {variable}` once, and `hop run --secret {variable}`",),
            )


def add_blob(data: bytes, extras: dict[str, bytes]) -> str:
    """Adds the blob to `extras`. Returns its digest."""
    digest = _digest(data)
    extras[digest] = data
    return digest


def _digest(data: bytes) -> str:
    return str(blake3(data).hexdigest())


def _script_environment(scripts: Sequence[str], folder: Path) -> tuple[str, EnvironmentFile | None]:
    for script in scripts:
        required = read_script_metadata(folder / script)
        if required is not None:
            return script, required
    return "", None


def _scripts(commands: Sequence[Sequence[str]], folder: Path) -> list[str]:
    words = [word for command in commands for word in command if word.endswith(".py")]
    return [word for word in dict.fromkeys(words) if (folder / word).is_file()]


def _checked_interpreter(
    scripts: Sequence[str], folder: Path, interpreter: str, notify: Notify, oldest: tuple[int, int]
) -> api.EnvironmentIn:
    version = interpreter_version(interpreter)
    if version is not None:
        _check_sdk_version(scripts, folder, interpreter, version, oldest)
        for name, requires in _required_versions(scripts, folder):
            if is_too_old(version, requires):
                raise _too_old(interpreter, version, name, requires)
            is_met = True
            with suppress(SpecError):  # a range that this program cannot read forbids nothing
                is_met = is_allowed((*version, 99), requires, name=name)
            if not is_met:
                notify(
                    f"warning: {name} requires Python {requires}, and {interpreter} is Python "
                    f"{version[0]}.{version[1]}"
                )
    return interpreter_environment(folder, interpreter, notify)


def _too_old(interpreter: str, version: tuple[int, int], name: str, requires: str) -> SpecError:
    build = "--requirements pyproject.toml" if name == "pyproject.toml" else "leave out --python"
    reason = "an environment" if name == "pyproject.toml" else f"the environment of {name}"
    return SpecError(
        f"{name} requires Python {requires}, and {interpreter} is Python {version[0]}.{version[1]}",
        hints=(
            "use a newer interpreter: activate its environment, or give its path: --python PATH",
            f"or let Hopyard build {reason} with such a version: {build}",
            f"or correct requires-python in {name}",
        ),
    )


def _required_versions(scripts: Sequence[str], folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the files that require versions of Python, with the ranges."""
    if requires := project_requires_python(folder):
        yield "pyproject.toml", requires
    for script in scripts:
        with suppress(SpecError):  # no version meets it
            metadata = read_script_metadata(folder / script)
            if metadata is not None and metadata.requires_python:
                yield script, metadata.requires_python


def _check_sdk_version(
    scripts: Sequence[str],
    folder: Path,
    interpreter: str,
    version: tuple[int, int],
    oldest: tuple[int, int],
) -> None:
    """Raises SpecError for a script that imports `hopyard` in an interpreter that is too old for it."""
    if version >= oldest:
        return
    for script in scripts:
        if _SDK_IMPORT.search((folder / script).read_bytes()):
            own = ".".join(map(str, oldest))
            raise SpecError(
                f"{script} imports hopyard, which needs Python {own}; {interpreter} is Python "
                f"{version[0]}.{version[1]}",
                hints=(
                    f"activate an environment with Python {own} or newer",
                    f"or build one: --requirements FILE --python {own}",
                ),
            )

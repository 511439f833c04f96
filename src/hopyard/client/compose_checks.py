"""What the program that composes runs and studies checks of a file before it looks at other files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopyard.client.build_environment import build_environment
from hopyard.client.interpreter import installed_packages
from hopyard.config.run_request import RunRequest
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection
from hopyard.domain.notebook import NOTEBOOK_SUFFIX
from hopyard.domain.run_values import limit_packages


def take_interpreter(top: YamlSection) -> str:
    """Removes the path of an interpreter from the file, and returns it. The server has no need to look at it:
    the replica uses it on its node."""
    python = top.values.get("python")
    if not isinstance(python, str) or "/" not in python:
        return ""
    if not python.startswith("/"):
        raise top.error(
            "python", f"`{python}` is not an absolute path", "give a path on the nodes, or a version"
        )
    assert isinstance(top.values, dict)
    del top.values["python"]
    return python


def check_requirements(top: YamlSection, folder: Path) -> None:
    """Raises SpecError for a file outside the code, before its existence is checked."""
    text = top.values.get("requirements")
    if not isinstance(text, str):
        return
    path = Path(os.path.normpath(folder / text))
    if not path.is_relative_to(folder):
        raise top.error("requirements", f"`{text}` is outside the code", "name a file of the code")
    if path.name.partition("[")[0] == "uv.lock":
        raise top.error(
            "requirements",
            "the server does not read a uv.lock",
            "name pyproject.toml, or write `uv export -o requirements.txt`",
        )


def check_files(request: RunRequest, folder: Path, top: YamlSection, *, has_code: bool) -> None:
    """Raises SpecError for a script that is not in the code, and for files outside the code."""
    if request.evaluator is not None:
        raise top.error(
            "evaluator", "an evaluator is a run of its own, which this request cannot submit", "use `hop run`"
        )
    for index, role in enumerate(request.roles):
        script = _script(role.command)
        if script is None or role.image or script.startswith("/") or "{" in script:
            continue
        if not has_code:
            raise top.error(f"roles.{index}.command", f"{script}: no code is given", "upload the files first")
        if not (folder / script).is_file():
            near = (folder / script).parent
            names = (
                sorted(item.name for item in near.glob(f"*{Path(script).suffix}")) if near.is_dir() else []
            )
            raise top.error(
                f"roles.{index}.command",
                f"{script} is not in the code",
                *unknown_name_hints(Path(script).name, names, subject="scripts there")[:1],
            )


def _script(command: Sequence[str]) -> str | None:
    """Returns the script of a command `python [-u] SCRIPT …`, None for another one."""
    words = [word for word in command if word != "-u"]
    if words[:1] not in (["python"], ["python3"]):
        return None
    word = words[-1] if "hopyard" in " ".join(words[1:3]) else "".join(words[1:2])
    return word if word.endswith((".py", NOTEBOOK_SUFFIX)) else None


def make_environment(
    request: RunRequest,
    folder: Path,
    interpreter: str,
    base: Mapping[str, Any] | None,
    blobs: dict[str, bytes],
    notices: list[str],
    *,
    trial: RunRequest | None = None,
    is_study: bool = False,
) -> Mapping[str, Any]:
    """Returns the environment as JSON, and adds the blobs that it needs.

    base: of an earlier run; it counts unless the file names another one. trial: of a study; its scripts
    count as well.
    """
    has_image = any(role.image for role in request.roles)
    if interpreter and request.requirements is None:
        return {"interpreter": interpreter}
    is_chosen = request.requirements is not None or (has_image and not request.container)
    if base is not None and not is_chosen and bool(base.get("container")) == request.container:
        return base
    environment: Any = build_environment(
        request,
        folder,
        None,
        blobs,
        notices.append,
        commands=[role.command for part in (request, trial) if part is not None for role in part.roles],
        files=set(),
        is_study=is_study,
    )
    own = environment.get("interpreter")
    return {**environment, "packages": limit_packages(installed_packages(own))} if own else environment


def with_relative_paths(request: RunRequest, folder: Path) -> RunRequest:
    """Returns the request as its file would name its requirements."""
    if request.requirements is None:
        return request
    return replace(request, requirements=request.requirements.relative_to(folder))

"""The run of `hop notebook`: its command, and what is checked before it is submitted."""

from __future__ import annotations

import os
from pathlib import Path

from hopyard.client.interpreter import caller_interpreter, installed_packages
from hopyard.domain.notebook import NOTEBOOK_SUFFIX
from hopyard.errors import SpecError

MODULE = "hopyard.run_servers.notebook"
_PACKAGE = "jupyterlab"


def notebook_arguments(file: str | None) -> tuple[str, ...]:
    """Returns the arguments of Python. file: the notebook to open first."""
    return ("-u", "-m", MODULE, *([] if file is None else [file]))


def check_notebook(file: str, folder: Path) -> str:
    """Returns the path of a notebook below the folder. Raises SpecError."""
    path = (folder / file).resolve()
    if not file.endswith(NOTEBOOK_SUFFIX):
        raise SpecError(
            f"{file} is not a notebook", hints=(f"give a file that ends in {NOTEBOOK_SUFFIX}, or none",)
        )
    if not path.is_file():
        raise SpecError(f"{file}: no such notebook", hints=("give one that exists, or none: make it there",))
    if not path.is_relative_to(folder.resolve()):
        raise SpecError(
            f"{file} is not below the current folder", hints=(f"cd {path.parent}", "run the command there")
        )
    return str(path.relative_to(folder.resolve()))


def check_notebook_server(interpreter: str | None) -> None:
    """Raises SpecError for an interpreter without JupyterLab. interpreter: None is the caller's."""
    python = interpreter or caller_interpreter(os.environ)
    if _PACKAGE not in {name.lower() for name in installed_packages(python)}:
        raise SpecError(
            f"jupyterlab is not installed for {python}",
            hints=(
                f"{python} -m pip install jupyterlab",
                "or build an environment with it: `hop notebook --requirements FILE`",
            ),
        )

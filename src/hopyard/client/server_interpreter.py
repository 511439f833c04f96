"""The interpreter of a run that serves a page: one that has the package of the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from hopyard.client.build_run import find_interpreter
from hopyard.client.interpreter import caller_interpreter, installed_packages
from hopyard.domain.text import escape
from hopyard.errors import SpecError


def check_interpreter(python: str | None) -> str | None:
    """Returns the interpreter that the option names, None without it. Raises SpecError."""
    found = find_interpreter(python)
    if python is not None and found is None:  # a version, as for `--requirements`
        raise SpecError(
            f"--python: `{escape(python)}` is not the path of an interpreter",
            hints=("for example `--python .venv/bin/python`",),
        )
    return found


def find_interpreter_with(
    package: str, interpreter: str | None, install_command: Callable[[str], str]
) -> str:
    """Returns an interpreter with a package: the given one, or else the caller's, or that of Hopyard.

    install_command: returns the shell command that installs the package for an interpreter. Raises
    SpecError."""
    candidates = [interpreter] if interpreter else [caller_interpreter(os.environ), sys.executable]
    for python in candidates:
        if package in {name.lower() for name in installed_packages(python)}:
            return python
    raise SpecError(
        f"{package} is not installed for {candidates[0]}",
        hints=(install_command(candidates[-1]), "or name an interpreter with `--python PATH`"),
    )

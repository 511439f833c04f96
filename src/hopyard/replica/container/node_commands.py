"""The commands of the node that represent processes in a container."""

from __future__ import annotations

import os
import sys

_PACKAGE = __name__.rpartition(".")[0]


def program_command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a program of this package, which runs on the node."""
    return [sys.executable, "-P", "-m", f"{_PACKAGE}.{module}", *arguments]


def program_env() -> dict[str, str]:
    """Returns the variables of such a program, none of the run."""
    names = ("PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}

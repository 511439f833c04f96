"""The commands of the node that represent processes in a container."""

from __future__ import annotations

import os
import sys

_NAMES = (
    "PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH",
    "HOME", "USER", "TMPDIR", "DOCKER_HOST", "CONTAINERS_CONF", "REGISTRY_AUTH_FILE",
    "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
)  # fmt: skip
_PACKAGE = __name__.rpartition(".")[0]


def program_command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a program of this package, which runs on the node."""
    return [sys.executable, "-P", "-m", f"{_PACKAGE}.{module}", *arguments]


def program_env() -> dict[str, str]:
    """Returns the variables of such a program, none of the run. It may have to start Podman's service."""
    return {name: os.environ[name] for name in _NAMES if name in os.environ}

"""The programs of the node that represent processes in a container."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hopyard.replica.user_process import ProcessSpec

_NAMES = (
    "PATH", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH",
    "HOME", "USER", "TMPDIR", "DOCKER_HOST", "CONTAINERS_CONF", "REGISTRY_AUTH_FILE",
    "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
)  # fmt: skip
_PACKAGE = __name__.rpartition(".")[0]


def node_program(
    script: ProcessSpec,
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    cwd: Path,
    standard: tuple[int, int, int],
    has_terminal: bool = False,
) -> ProcessSpec:
    """Returns how to start a program of this package, which runs on the node without the limits and mounts of
    the script: those are of the container.

    script: how the process in the container is described. env: more variables; it has none of the run, and
    it may have to start Podman's service. standard: its standard streams.
    """
    return replace(
        script,
        argv=[sys.executable, "-P", "-m", f"{_PACKAGE}.{module}", *arguments],
        env={**{name: os.environ[name] for name in _NAMES if name in os.environ}, **env},
        cwd=cwd,
        outer_cwd=None,
        cpus=None,
        groups=(),
        view=None,
        namespace=None,
        standard=standard,
        has_terminal=has_terminal,
    )

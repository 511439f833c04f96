"""The run of `hop tensorboard`: what it shows, and the environment that it runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from hopyard.client.interpreter import caller_interpreter, installed_packages
from hopyard.config.run_request import RoleRequest, RunRequest
from hopyard.domain.run_port import TENSORBOARD_PORT
from hopyard.errors import SpecError

MODULE = "hopyard.run_servers.tensorboard"
PROJECT = "tensorboard"
_PACKAGE = "tensorboard"
_CPU_MILLI = 100  # it waits for requests most of the time


def tensorboard_request(runs: Iterable[str]) -> RunRequest:
    """Returns the request of the run. runs: the ids of the runs that it shows."""
    shown = tuple(dict.fromkeys(runs))
    command = ("python", "-u", "-m", MODULE, *shown)
    return RunRequest(
        roles=(RoleRequest(command, cpu_milli=_CPU_MILLI),),
        project=PROJECT,
        label=PROJECT,
        ports=dict([TENSORBOARD_PORT]),
        reads=shown,
    )


def find_tensorboard(interpreter: str | None) -> str:
    """Returns an interpreter with TensorBoard: the given one, or else the caller's, or that of Hopyard.
    Raises SpecError."""
    candidates = [interpreter] if interpreter else [caller_interpreter(os.environ), sys.executable]
    for python in candidates:
        if _PACKAGE in {name.lower() for name in installed_packages(python)}:
            return python
    raise SpecError(
        f"tensorboard is not installed for {candidates[0]}",
        hints=(f"{candidates[-1]} -m pip install tensorboard", "or name an interpreter with `--python PATH`"),
    )

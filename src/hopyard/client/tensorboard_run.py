"""The run of `hop tensorboard`: what it shows, and the environment that it runs in."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.client.server_interpreter import find_interpreter_with
from hopyard.config.run_request import RoleRequest, RunRequest
from hopyard.domain.run_port import TENSORBOARD_PORT

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
    return find_interpreter_with(_PACKAGE, interpreter, lambda python: f"{python} -m pip install tensorboard")

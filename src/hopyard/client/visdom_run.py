"""The run of `hop visdom`: the one of a user that is live, or a new one with the plots of the last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.run_files import fetch_run_files, is_ended, list_run_files
from hopyard.client.server_interpreter import find_interpreter_with
from hopyard.config.run_request import RoleRequest, RunRequest
from hopyard.domain.run_port import VISDOM_NAME, VISDOM_PORT

if TYPE_CHECKING:
    from hopyard.api_client import types as api

MODULE = "hopyard.run_servers.visdom"
_PACKAGE = "visdom"
_CPU_MILLI = 100  # it waits for requests most of the time
_MAX_LISTED = 10  # other runs may have the same project and label


def visdom_request() -> RunRequest:
    """Returns the request of the run."""
    return RunRequest(
        roles=(RoleRequest(("python", "-u", "-m", MODULE), cpu_milli=_CPU_MILLI),),
        project=VISDOM_NAME,
        label=VISDOM_NAME,
        ports=dict([VISDOM_PORT]),
    )


def find_visdom(interpreter: str | None) -> str:
    """Returns an interpreter with Visdom: the given one, or else the caller's, or that of Hopyard. Raises
    SpecError."""
    return find_interpreter_with(
        _PACKAGE,
        interpreter,
        lambda python: (
            f"echo 'setuptools<81' > build.txt; uv pip install --python {python} "
            "--build-constraints build.txt visdom"
        ),
    )


def list_visdom_runs(client: Client) -> list[api.RunOut]:
    """Returns the newest runs that served Visdom for the user of this client, the newest first."""
    found = client.iterate_runs(
        user=client.get_status()["user"], project=VISDOM_NAME, label=VISDOM_NAME, max_rows=_MAX_LISTED
    )
    return [run for run in found if VISDOM_PORT[0] in (run["spec"].get("ports") or {})]


def fetch_environments(client: Client, runs: list[api.RunOut], folder: Path) -> None:
    """Writes the environments that the newest ended run kept into the folder. runs: the newest first."""
    for run in runs:
        files = list_run_files(client, run, is_run_dir=True) if is_ended(run) else []
        if files:
            fetch_run_files(client, run, {file.path: file for file in files}, folder)
            return

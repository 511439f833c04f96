"""The run of `hop visdom`: the one of a user that is live, or a new one with the plots of the last."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.build_run import find_interpreter
from hopyard.client.interpreter import caller_interpreter, installed_packages
from hopyard.client.run_files import fetch_run_files, is_ended, list_run_files
from hopyard.config.run_request import RoleRequest, RunRequest
from hopyard.domain.run_port import VISDOM_NAME, VISDOM_PORT
from hopyard.domain.text import escape
from hopyard.errors import SpecError

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


def check_interpreter(python: str | None) -> str | None:
    """Returns the interpreter that the option names, None without it. Raises SpecError."""
    found = find_interpreter(python)
    if python is not None and found is None:  # a version, as for `--requirements`
        raise SpecError(
            f"--python: `{escape(python)}` is not the path of an interpreter",
            hints=("for example `--python .venv/bin/python`",),
        )
    return found


def find_visdom(interpreter: str | None) -> str:
    """Returns an interpreter with Visdom: the given one, or else the caller's, or that of Hopyard. Raises
    SpecError."""
    candidates = [interpreter] if interpreter else [caller_interpreter(os.environ), sys.executable]
    for python in candidates:
        if _PACKAGE in {name.lower() for name in installed_packages(python)}:
            return python
    raise SpecError(
        f"visdom is not installed for {candidates[0]}",
        hints=(
            f"echo 'setuptools<81' > build.txt; uv pip install --python {candidates[-1]} "
            "--build-constraints build.txt visdom",
            "or name an interpreter with `--python PATH`",
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

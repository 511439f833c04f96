"""Finds the run that a reference names, and lists runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hopyard.api_client.client import Client
from hopyard.domain.replica import RUN_TOKEN_PREFIX

RunJson = dict[str, Any]  # a run as the API returns it


def get_run(client: Client, ref: str) -> RunJson:
    """Returns the run with this id, name, number or label, or for `last` the newest.

    A number is first looked up in the project of the current folder. Raises NotFound with close names,
    SpecError for a number of several projects.
    """
    own = os.environ.get("HOPYARD_RUN_ID")
    if own and client.token.startswith(RUN_TOKEN_PREFIX) and ref in (own, os.environ.get("HOPYARD_RUN")):
        run: RunJson = client.get(f"/runs/{own}")  # a run's own token may look up no other
    else:
        run = client.get(
            "/runs/resolve", ref=ref, project=_current_project() if ref.strip().isdecimal() else None
        )
    return run


def fetch_runs(
    client: Client,
    *,
    phases: tuple[str, ...],
    tags: dict[str, str],
    limit: int | None,
    **filters: str | int | None,
) -> list[RunJson]:
    """Returns the newest `limit` runs that match, or all."""
    tag = [f"{key}={value}" for key, value in tags.items()]
    return list(
        client.iterate_pages(
            "/runs",
            "runs",
            cursor_key="before",
            max_rows=limit or sys.maxsize,
            phase=",".join(phases) or None,
            tag=tag,
            **filters,
        )
    )


def _current_project() -> str | None:
    """Returns the project of a run submitted from the current folder; None in a deleted folder."""
    from hopyard.config.run_request import default_project

    try:
        return default_project(Path.cwd())
    except FileNotFoundError:
        return None

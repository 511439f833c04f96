"""Finds the run that a reference names, and lists runs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.api_client.phase_filter import list_runs_in_phases
from hopyard.client.feedback import Notify
from hopyard.domain.replica import RUN_TOKEN_PREFIX

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_POLL_INTERVAL_S = 0.2


def get_run(client: Client, ref: str) -> api.RunOut:
    """Returns the run with this id, name, number or label, or for `last` the newest.

    A number is first looked up in the project of the current folder. Raises NotFound with close names,
    SpecError for a number of several projects.
    """
    own = os.environ.get("HOPYARD_RUN_ID")
    if own and client.token.startswith(RUN_TOKEN_PREFIX) and ref in (own, os.environ.get("HOPYARD_RUN")):
        return client.get_run(own)  # a run's own token may look up no other
    return client.resolve_run(ref=ref, project=_current_project() if ref.strip().isdecimal() else None)


def wait_until_stopped(client: Client, run: api.RunOut, notify: Notify) -> api.RunOut:
    """Returns the run when it is no longer stopping."""
    if run["phase"] == "stopping":
        notify(f"{run['name']} is still stopping; it is resumed when it has stopped")
    while run["phase"] == "stopping":
        time.sleep(_POLL_INTERVAL_S)
        run = client.get_run(run["id"])
    return run


def fetch_runs(
    client: Client,
    *,
    phases: tuple[str, ...],
    tags: dict[str, str],
    limit: int | None,
    user: str | None = None,
    project: str | None = None,
    label: str | None = None,
    dataset: str | None = None,
    parent: str | None = None,
    studies: int | None = None,
    trials: int | None = None,
    where: str | None = None,
    sort: str | None = None,
    archived: str | None = None,
    starred: bool = False,
) -> list[api.RunOut]:
    """Returns the newest `limit` runs that match, or all; with `sort` the first ones in its order."""
    return list_runs_in_phases(
        client,
        phases,
        max_rows=limit or sys.maxsize,
        tag=[f"{key}={value}" for key, value in tags.items()],
        user=user,
        project=project,
        label=label,
        dataset=dataset,
        parent=parent,
        studies=studies,
        trials=trials,
        where=where,
        sort=sort,
        archived=archived,
        starred=1 if starred else None,
    )


def get_attempt_number(run: api.RunOut) -> int:
    """Returns the number of the newest attempt; 0 where there is none."""
    attempt = run.get("attempt")
    return attempt["number"] if attempt else 0


def get_study_spec(run: api.RunOut) -> api.StudyIn:
    """Returns the spec of a study. run: the run of the study."""
    study = run["spec"].get("study")
    assert study is not None, run["name"]
    return study


def _current_project() -> str | None:
    """Returns the project of a run submitted from the current folder; None in a deleted folder."""
    from hopyard.config.run_request import default_project

    try:
        return default_project(Path.cwd())
    except FileNotFoundError:
        return None

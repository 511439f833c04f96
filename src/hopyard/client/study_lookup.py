"""Finds the study that a reference names, and reads its journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.run_lookup import get_run, get_study_spec
from hopyard.errors import NotFound, SpecError
from hopyard.studies.journal import JournalRecord, read_records

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_MAX_RUNS_SEARCHED = 1000  # so many of the newest studies have their names compared


def get_study(client: Client, ref: str) -> api.RunOut:
    """Returns the study's run, found as any run or by the name in its file; for "" the caller's newest study.

    Raises NotFound, and SpecError for a run that is no study.
    """
    if not ref:
        return _newest_study(client)
    try:
        run = get_run(client, ref)
    except NotFound:
        named = _find_by_name(client, ref)
        if named is None:
            raise
        return named
    if run["spec"].get("study") is None:
        named = _find_by_name(client, ref)  # a run may have the same label
        if named is None:
            raise SpecError(
                f"{run['name']} is a run, but no study", hints=("`hop search ls -a` lists the studies",)
            )
        return named
    return run


def _find_by_name(client: Client, ref: str) -> api.RunOut | None:
    """Returns the newest study with this label, else with this name in its file; own ones come first."""
    studies = list(client.iterate_runs(studies=1, max_rows=_MAX_RUNS_SEARCHED))
    called = [study for study in studies if study["spec"].get("label") == ref] or [
        study for study in studies if get_study_spec(study)["name"] == ref
    ]
    if not called:
        return None
    own = _current_user(client)
    return get_run(
        client, next((study for study in called if study["name"].partition("/")[0] == own), called[0])["id"]
    )


def _current_user(client: Client) -> str:
    """Returns the caller's name, from their newest run; "" where there is none."""
    try:
        return str(get_run(client, "last")["name"].partition("/")[0])
    except NotFound:
        return ""


def _newest_study(client: Client) -> api.RunOut:
    """Returns the caller's newest study.

    Studies of others are never chosen implicitly: `replay` and `resume` run their code.
    """
    own = _current_user(client)
    newest = list(client.iterate_runs(studies=1, user=own, max_rows=1)) if own else []
    if not newest:
        raise NotFound(
            "there is no study of yours yet",
            hints=("`hop search search.yaml` starts one", "`hop search ls -a` lists those of others"),
        )
    return get_run(client, newest[0]["id"])  # the complete run: a listing has only a part of its fields


def read_journal(client: Client, study: api.RunOut) -> list[JournalRecord]:
    """Returns all records of the study, over all its attempts. The server limits the size of an answer."""
    data = b""
    while True:
        with client.open("GET", f"/runs/{study['id']}/journal", query={"offset": len(data)}) as answer:
            part = answer.read()
        if not part:
            return list(read_records(data))
        data += part

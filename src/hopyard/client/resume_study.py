"""Resumes a study that has ended, in a new run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hopyard.api_client.client import Client
from hopyard.client.feedback import (
    Notify,
    ProgressFactory,
    no_progress,
    print_notice,
)
from hopyard.client.local_searcher import build_searcher
from hopyard.client.run_lookup import get_study_spec, wait_until_stopped
from hopyard.client.study_lookup import read_journal
from hopyard.config.schemas.study_json import study_from_json
from hopyard.domain.ids import new_run_id
from hopyard.domain.study import StudySpec
from hopyard.domain.trial import AskEvent, Proposal, SearchState
from hopyard.errors import Conflict, NotFound, SpecError
from hopyard.studies.journal import JournalRecord

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def resume_study(
    client: Client,
    study: api.RunOut,
    *,
    trials: int | None = None,
    code: Path | None = None,
    queue: str | None = None,
    priority: int | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    trust: bool = False,
    notify: Notify = print_notice,
    on_progress: ProgressFactory = no_progress,
) -> tuple[Client, api.RunOut]:
    """Resumes the study in a new run, and returns that run.

    A study that is stopping is waited for. trials: how many in all. code: a folder that replaces the study's
    code, with its inline metadata, links and git state. queue, priority: others than the study's. env,
    secrets: variables, and names of secrets, that are added. trust: whether all of another user's states may
    be read, which may run that user's code.

    Raises Conflict where the study has not ended, or has finished and no more trials are requested; SpecError
    where its searcher cannot propose more.
    """
    from hopyard.client.fork_code import pack_new_code
    from hopyard.client.param_forms import fork_trial_form
    from hopyard.client.submit import send_with_blobs
    from hopyard.config.run_request import check_priority

    if priority is not None:
        check_priority(priority)
    study = wait_until_stopped(client, study, notify)
    if trials is not None:
        _check_replayable(study_from_json(get_study_spec(study)), read_journal(client, study), trials)
    body: api.ContinueIn = {
        "id": new_run_id(datetime.now(UTC), os.urandom(7)),
        "trials": trials,
        "queue": queue,
        "priority": priority,
        "trust": trust,
        "env": dict(env or {}),
        "secrets": list(secrets),
    }

    def send(client: Client) -> api.RunOut:
        return client.continue_run(study["id"], body, plan=1)

    if code is None:
        return client, send(client)
    form = fork_trial_form(get_study_spec(study), code, notify=notify)
    if form is not None:
        body["param_format"] = cast("api.ParamFormatIn", asdict(form))
    new = pack_new_code(client, study, code, notify=notify, on_progress=on_progress)
    body["code"], body["git"], body["environment"] = new.tree.digest, new.git, new.environment(study)
    return send_with_blobs(client, send, new.tree, new.extras, on_progress=on_progress)


def previous_study_names(client: Client, studies: Sequence[api.RunOut]) -> dict[str, str]:
    """Returns a text for each study that continues another one, by id."""
    names = {study["id"]: study["name"] for study in studies}
    texts = {}
    for study in studies:
        before = get_study_spec(study).get("continues")
        if not before:
            continue
        if before not in names:
            try:
                names[before] = client.get_run(before)["name"]
            except NotFound:
                names[before] = "a study that was deleted"
        texts[study["id"]] = f"continues {names[before]}"
    return texts


def _check_replayable(study: StudySpec, records: Sequence[JournalRecord], trials: int) -> None:
    """Raises SpecError unless the searcher repeats its decisions with this number of trials, and can propose
    more."""
    from hopyard.searchers.replay import replay
    from hopyard.studies.event_json import event_from_json

    if study.beginning is not None:
        hint = (
            "continue training of its best model with `hop fork STUDY --checkpoint best`, if need be "
            "with other parameters"
        )
        raise SpecError(
            "--trials: this study is a fork, which trains one model; it has no further trials",
            hints=(hint,),
        )
    name = study.searcher.name
    events = [event for record in records if (event := event_from_json(record)) is not None]
    begun = len(
        {
            event.answer.trial
            for event in events
            if isinstance(event, AskEvent) and isinstance(event.answer, Proposal)
        }
    )
    if trials < begun:
        raise SpecError(
            f"--trials: `{trials}` is too small: {begun} trials have already begun",
            hints=("give the total number of trials",),
        )
    searcher = build_searcher(replace(study, trials=trials))
    if searcher is None:
        return  # the study's own driver makes the same check
    try:
        replay(searcher, events)
    except Conflict as error:
        raise SpecError(
            f"--trials: the decisions of `{name}` depend on the number of trials: with {trials} in place of "
            f"{study.trials} its earlier decisions would differ",
            hints=(
                "`random`, `median`, `tpe`, `gp` and `cmaes` can be extended; start a new study",
                error.message,
            ),
        ) from error
    if begun < trials and searcher.ask() is SearchState.DONE:
        raise SpecError(
            f"--trials: `{name}` cannot propose more than {begun} trials",
            hints=(
                "the grid has no more points: widen the space and start a new study"
                if name == "grid"
                else "start a new study",
            ),
        )

"""Stops one trial of a study. Its values count, and it is not a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.run_lookup import get_study_spec
from hopyard.errors import SpecError
from hopyard.studies.study_state import TrialPhase
from hopyard.studies.view.study_view import TrialView

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def stop_trial(
    client: Client, study: api.RunOut, trial: TrialView, *, grace_s: float | None = None
) -> api.RunOut:
    """Returns the run that was stopped, or the study of a trial that hops between workers. Raises SpecError
    for a trial that does not train."""
    if trial.state not in (TrialPhase.TRAINING, TrialPhase.PAUSED):
        raise SpecError(f"trial {trial.id} of {study['name']} does not train: it is {trial.state.value}")
    if get_study_spec(study)["parallel"] == "mop":
        return client.stop_run(study["id"], {"trial": trial.id})
    if not trial.run:
        raise SpecError(f"trial {trial.id} of {study['name']} has no run yet")
    return client.stop_run(trial.run, {} if grace_s is None else {"grace_s": grace_s})

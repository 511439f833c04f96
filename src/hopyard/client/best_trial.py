"""The state of a study's best trial, if each trial is a run: from the checkpoints of the trial's runs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.client.checkpoint_lookup import is_resumable
from hopyard.client.download import download_tree
from hopyard.domain.metric_values import decode_value
from hopyard.domain.study import Goal
from hopyard.errors import NotFound, SpecError
from hopyard.sdk.checkpoints import read_checkpoint
from hopyard.studies.view.study_view import StudyView, TrialView

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def read_best_objects(client: Client, view: StudyView, *, untrusted: bool) -> dict[str, Any]:
    """Returns the state of each object that the script of the best trial has bound, by name. untrusted: reads
    only tensors, arrays and plain values. Raises NotFound without a checkpoint, SpecError for a value that
    was not read."""
    trial = view.best()
    if trial is None:
        raise NotFound("the study has no best trial yet")
    checkpoint = _find_checkpoint(client, view, trial)
    with tempfile.TemporaryDirectory(prefix="hopyard-state-") as scratch:
        folder = Path(scratch) / "checkpoint"
        download_tree(client, checkpoint["manifest"], folder)
        contents = read_checkpoint(str(folder), is_untrusted=untrusted)
        return {name: contents.state_of(name) for name in contents.objects}


def fill_best_model(model: Any, states: Mapping[str, Any]) -> Any:
    """Returns the model with the weights of the best trial. Raises SpecError if it is unclear which state is
    the model's."""
    name = "model" if "model" in states else next(iter(states)) if len(states) == 1 else None
    if name is None:
        raise SpecError(
            f"the script has bound {', '.join(f'`{each}`' for each in states) or 'nothing'}, and no `model`",
            hints=("bind it by this name: hop.bind(model=…); or take study.best_state()[NAME]",),
        )
    if not hasattr(model, "load_state_dict"):
        raise SpecError(
            f"a {type(model).__name__} has no `load_state_dict`",
            hints=(f"take its state: study.best_state()[{name!r}]",),
        )
    model.load_state_dict(states[name])
    return model


def _find_checkpoint(client: Client, view: StudyView, trial: TrialView) -> api.CheckpointOut:
    """Returns the checkpoint with the best value of the trial; the newest one if no checkpoint has a
    value."""
    found = [
        checkpoint
        for run in trial.runs
        for checkpoint in client.iterate_run_checkpoints(run)
        if is_resumable(checkpoint)
    ]
    if not found:
        raise NotFound(
            f"trial {trial.id} has saved no checkpoint",
            hints=("save them in the script: hop.bind(model=…) and hop.loop, or hop.save",),
        )
    sign = -1.0 if view.goal is Goal.MAX else 1.0

    def loss(checkpoint: api.CheckpointOut) -> float:
        value = decode_value(checkpoint["metrics"].get(view.metric))
        return sign * value if math.isfinite(value) else math.inf

    return min(reversed(found), key=loss)

"""The state of a study's best trial, from the saved files."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopyard.errors import NotFound
from hopyard.studies.view.study_view import StudyView
from hopyard.trainables.config import Config
from hopyard.trainables.protocol import SupportsCapture
from hopyard.trial_state.decode import decode


def find_best(records: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Returns the file in `folder` with the newest existing state that the journal records as the best.
    Raises NotFound."""
    for record in reversed(records):
        if record["kind"] == "best" and (folder / str(record["state"])).is_file():
            return folder / str(record["state"])
    raise NotFound(
        "the best state was not saved",
        hints=("wait for the end of the study, or up to 30 s: its state is saved at these times",),
    )


def best_config(view: StudyView) -> Config | None:
    """Returns the config of the best trial at its best epoch; None if the study has no result yet."""
    best = view.best()
    if best is None:
        return None
    return Config(
        best.best_params,
        best.id,
        int(view.spec.get("seed", 0)),
        view.epochs(best.best_epoch),
        view.epochs(best.budget),
    )


def model_of(trainable: Any, state: Any, config: Config | None) -> Any:
    """Returns the model in a state: that of a trainable with `whole`, ready to predict; otherwise the
    state."""
    whole = getattr(trainable, "whole", None)
    if whole is None:
        return state
    takes_config = len(inspect.signature(whole).parameters) > 1
    model = whole(state, config) if takes_config else whole(state)
    return model.eval() if callable(getattr(model, "eval", None)) else model


def read_state(file: Path, trainable: Any, view: StudyView, *, untrusted: bool) -> Any:
    """Returns the captured value; with a `trainable` that captures its states, the restored state. untrusted:
    as in `decode`."""
    captured = decode(bytearray(file.read_bytes()), untrusted=untrusted)["state"]
    config = best_config(view)
    if config is None or not isinstance(trainable, SupportsCapture):
        return captured
    return trainable.restore(captured, config)
